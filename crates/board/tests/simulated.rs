//! A board in simulated time against a simulated target: what it shows is compared with what was
//! done to the target.

mod fake;

use std::sync::Arc;
use std::time::Duration;

use fake::{Memory, Server, USUAL};
use telesto_board::figures::{Figures, Window};
use telesto_board::history::Row;
use telesto_board::store::Store;
use telesto_board::target::Operation;
use telesto_board::{Board, Error, OperationReport, Options};
use telesto_testkit::World;
use telesto_testkit::world::Process;

const RECORDS: u64 = 100;

fn options() -> Options {
    Options { records: RECORDS, ..Options::default() }
}

async fn start(process: &Process, options: Options, server: &Server) -> Arc<Board> {
    kept(process, options, server, None).await.expect("starts")
}

async fn kept(
    process: &Process,
    options: Options,
    server: &Server,
    store: Option<&Memory>,
) -> telesto_board::Result<Arc<Board>> {
    let store = store.map(|store| Arc::new(store.clone()) as Arc<dyn Store>);
    let progress = Arc::new(|_: &str, _: u64, _: u64| {});
    let board = Board::start(&process.env, options, server.named(), store, progress).await?;
    // Past the first question whether the records are there.
    process.env.clock.sleep(Duration::from_millis(40)).await;
    Ok(board)
}

fn operation(board: &Board, operation: Operation) -> OperationReport {
    let report = board.report(&Window::ALL).expect("no damage");
    let mut operations = report.targets[0].operations.clone();
    operations.retain(|one| one.operation == operation);
    operations.remove(0)
}

fn figures(board: &Board, of: Operation, window: Window) -> Figures {
    operation(board, of).figures(window).expect("a window").clone()
}

/// How many of the last hour's reads were slower than a band's end (`BANDS`).
fn slower_than(board: &Board, micros: u64) -> u64 {
    let columns = board.columns("server", Operation::Read, Window::Hour);
    let columns = columns.expect("no damage").expect("a target");
    let band = telesto_board::figures::BANDS.iter().position(|upper| *upper == micros);
    let band = band.expect("a band's end");
    columns.iter().map(|column| column.bands[band + 1..].iter().sum::<u64>()).sum()
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// A board that can open nothing more says so of itself, and nothing of its target.
#[test]
fn connection_that_the_boards_own_system_refuses_is_time_not_probed() {
    World::run(1, false, async |world| {
        let (process, server) = (world.process("board", 0), Server::new(&world, RECORDS));
        let board = start(&process, options(), &server).await;
        world.sleep(seconds(20)).await;
        server.exhaust(true);
        server.kill();
        server.restart();
        world.sleep(seconds(10)).await;
        server.exhaust(false);
        world.sleep(seconds(20)).await;
        for of in Operation::ALL {
            let (figures, report) = (figures(&board, of, Window::Run), operation(&board, of));
            assert!((98..=102).contains(&report.unprobed), "{report:?}");
            assert_eq!(figures.succeeded, figures.operations, "{figures:?}");
            assert!((398..=402).contains(&figures.operations), "{figures:?}");
        }
    });
}

#[test]
fn freeze_of_ten_seconds_shows_as_a_hundred_late_operations() {
    World::run(1, false, async |world| {
        let (process, server) = (world.process("board", 0), Server::new(&world, RECORDS));
        let board = start(&process, options(), &server).await;
        world.sleep(seconds(20)).await;
        server.freeze();
        world.sleep(seconds(10)).await;
        server.thaw();
        world.sleep(seconds(30)).await;
        for of in Operation::ALL {
            let figures = figures(&board, of, Window::Run);
            assert!((598..=602).contains(&figures.operations), "{figures:?}");
            assert_eq!(figures.succeeded, figures.operations, "{figures:?}");
            let max = figures.latency_ms.max.expect("some succeeded");
            assert!((9_800.0..10_400.0).contains(&max), "{figures:?}");
            assert_eq!(figures.promise_kept, Some(false));
            // Those due in the first half of the freeze took longer than the limit of 5 s.
            let available = figures.availability.expect("probed") * figures.operations as f64;
            let late = figures.operations - available.round() as u64;
            assert!((47..=53).contains(&late), "{late} of {figures:?}");
            assert!(figures.unknown_seconds < 1.0, "{figures:?}");
        }
        // Due every 100 ms for 10 s, and answered at its end: 90 took longer than a second, 80 than
        // two.
        for (than, expected) in [(1_000_000, 90), (2_000_000, 80), (5_000_000, 50)] {
            let slower = slower_than(&board, than);
            assert!(slower.abs_diff(expected) <= 3, "{slower} slower than {than} µs");
        }
    });
}

#[test]
fn brown_out_shows_as_many_slow_operations_as_the_target_made_slow() {
    World::run(2, false, async |world| {
        let (process, server) = (world.process("board", 0), Server::new(&world, RECORDS));
        let board = start(&process, options(), &server).await;
        world.sleep(seconds(20)).await;
        server.brown_out(Some((30, Duration::from_millis(1_500))));
        world.sleep(seconds(20)).await;
        server.brown_out(None);
        world.sleep(seconds(20)).await;
        let slow: u64 = Operation::ALL
            .into_iter()
            .map(|of| {
                let columns = board.columns("server", of, Window::Hour).expect("no damage");
                let columns = columns.expect("a target").into_iter();
                columns.map(|column| column.bands[10]).sum::<u64>()
            })
            .sum();
        assert_eq!(slow, server.slowed());
        assert!((80..160).contains(&slow), "{slow} of 400");
        let figures = figures(&board, Operation::Read, Window::Run);
        assert_eq!(figures.succeeded, figures.operations);
        assert!(figures.latency_ms.p50.expect("probed") < 10.0, "{figures:?}");
        assert!(figures.latency_ms.p99.expect("probed") > 1_000.0, "{figures:?}");
        assert_eq!(figures.nines, None);
    });
}

#[test]
fn kill_and_restart_show_as_failures_for_as_long_as_the_target_was_gone() {
    World::run(3, false, async |world| {
        let (process, server) = (world.process("board", 0), Server::new(&world, RECORDS));
        let board = start(&process, options(), &server).await;
        world.sleep(seconds(20)).await;
        server.kill();
        world.sleep(seconds(10)).await;
        server.restart();
        world.sleep(seconds(30)).await;
        for of in Operation::ALL {
            let figures = figures(&board, of, Window::Hour);
            assert!(figures.failures.unreachable.abs_diff(100) <= 2, "{figures:?}");
            let failed: u64 = figures.failures.each().map(|(_, count)| count).sum();
            assert_eq!(failed, figures.failures.unreachable, "{figures:?}");
            assert_eq!(figures.latency_ms.p99, None, "more than 1 % failed");
            let expected = 1.0 - 100.0 / 600.0;
            let available = figures.availability.expect("probed");
            assert!((available - expected).abs() < 0.01, "{figures:?}");
        }
        let last = operation(&board, Operation::Read).last_failure.expect("one failed");
        assert_eq!(last.message, "connection refused");
    });
}

#[test]
fn freeze_beyond_the_time_limit_is_counted_and_nothing_is_dropped() {
    World::run(4, false, async |world| {
        let (process, server) = (world.process("board", 0), Server::new(&world, RECORDS));
        let asked = Options { timeout: seconds(5), lanes: 4, waiting: 20, ..options() };
        let board = start(&process, asked, &server).await;
        world.sleep(seconds(20)).await;
        server.freeze();
        world.sleep(seconds(20)).await;
        server.thaw();
        world.sleep(seconds(20)).await;
        let report = operation(&board, Operation::Read);
        let figures = report.figures(Window::Run).expect("a window");
        let failed: u64 = figures.failures.each().map(|(_, count)| count).sum();
        assert_eq!(figures.succeeded + failed, figures.operations);
        let due = figures.operations + report.unprobed + report.under_way;
        assert!((598..=602).contains(&due), "{due} were due: {figures:?}");
        // Four lanes hold an operation for its time limit, twenty wait, the others could not begin.
        assert!(figures.failures.timed_out >= 4 && figures.failures.not_begun > 100, "{figures:?}");
        assert!(failed.abs_diff(200) <= 50, "{figures:?}");
        assert!(figures.latency_ms.max.expect("some succeeded") <= 5_100.0, "{figures:?}");
    });
}

#[test]
fn errors_and_foreign_values_are_failures_of_their_kind() {
    World::run(5, false, async |world| {
        let (process, server) = (world.process("board", 0), Server::new(&world, RECORDS));
        let board = start(&process, options(), &server).await;
        server.refuse(true);
        world.sleep(seconds(10)).await;
        server.refuse(false);
        server.lie(true);
        world.sleep(seconds(10)).await;
        server.lie(false);
        world.sleep(seconds(1)).await;
        let read = figures(&board, Operation::Read, Window::Run).failures;
        assert!(read.rejected.abs_diff(100) <= 2 && read.wrong.abs_diff(100) <= 2, "{read:?}");
        let update = figures(&board, Operation::Update, Window::Run).failures;
        assert!(update.rejected.abs_diff(100) <= 2 && update.wrong == 0, "{update:?}");
    });
}

#[test]
fn time_in_which_the_board_stood_still_is_unknown() {
    World::run(6, false, async |world| {
        let (process, server) = (world.process("board", 0), Server::new(&world, RECORDS));
        // Slow enough that some operations are always under way.
        server.brown_out(Some((100, Duration::from_millis(300))));
        let board = start(&process, options(), &server).await;
        world.sleep(seconds(60)).await;
        process.freeze();
        world.sleep(seconds(120)).await;
        process.thaw();
        world.sleep(seconds(60)).await;
        // The machine's host stops the board: its own clock does not see it.
        process.pause();
        world.sleep(seconds(60)).await;
        process.resume(true);
        world.sleep(seconds(60)).await;
        for of in Operation::ALL {
            let report = operation(&board, of);
            let figures = report.figures(Window::Run).expect("a window");
            assert_eq!(figures.succeeded, figures.operations, "{figures:?}");
            assert!(figures.latency_ms.max.expect("probed") < 320.0, "{figures:?}");
            assert!((figures.unknown_seconds - 180.0).abs() < 3.0, "{figures:?}");
            let due = figures.operations + report.unprobed + report.under_way;
            assert!(due.abs_diff(3_000) <= 4, "{due} were due");
        }
        let columns = board.columns("server", Operation::Read, Window::Run);
        let columns = columns.expect("no damage").expect("a target");
        let unknown = columns.iter().filter(|column| column.known == 0.0).count();
        assert!((1..=3).contains(&unknown), "{columns:?}");
    });
}

#[test]
fn board_that_was_not_running_leaves_a_gap_and_keeps_its_history() {
    World::run(7, false, async |world| {
        let (server, store) = (Server::new(&world, RECORDS), Memory::default());
        let first = world.process("board", 0);
        let board = kept(&first, options(), &server, Some(&store)).await.expect("starts");
        world.sleep(seconds(600)).await;
        assert_eq!(board.stop(seconds(1)).await, None);
        world.sleep(seconds(1_200)).await;
        let second = world.process("board", 1);
        let board = kept(&second, options(), &server, Some(&store)).await.expect("starts");
        world.sleep(seconds(600)).await;
        let hour = figures(&board, Operation::Read, Window::Hour);
        assert!(hour.operations.abs_diff(12_000) < 20, "{hour:?}");
        assert!((hour.unknown_seconds - 2_400.0).abs() < 3.0, "{hour:?}");
        assert_eq!(hour.availability, Some(1.0));
        let run = figures(&board, Operation::Read, Window::Run);
        assert!(run.operations.abs_diff(6_000) < 10, "{run:?}");
        let year = figures(&board, Operation::Read, Window::Year);
        assert_eq!(year.operations, hour.operations);
        assert!(year.unknown_seconds > 364.0 * 86_400.0);
    });
}

#[test]
fn killed_board_loses_what_it_had_not_written_and_nothing_is_counted_twice() {
    World::run(8, false, async |world| {
        let (server, store) = (Server::new(&world, RECORDS), Memory::default());
        let first = world.process("board", 0);
        let _board = kept(&first, options(), &server, Some(&store)).await.expect("starts");
        world.sleep(seconds(95)).await;
        first.kill();
        // In the minute in which it died.
        let second = world.process("board", 1);
        let board = kept(&second, options(), &server, Some(&store)).await.expect("starts");
        world.sleep(seconds(95)).await;
        let hour = figures(&board, Operation::Update, Window::Hour);
        assert!((1_795..=1_900).contains(&hour.operations), "{hour:?}");
    });
}

#[test]
fn store_that_fails_loses_nothing_and_one_that_was_taken_over_ends_the_board() {
    World::run(9, false, async |world| {
        let (process, server) = (world.process("board", 0), Server::new(&world, RECORDS));
        let store = Memory::default();
        let board = kept(&process, options(), &server, Some(&store)).await.expect("starts");
        store.fail(true);
        world.sleep(seconds(300)).await;
        let told = board.report(&[Window::Hour]).expect("no damage").store.expect("a store");
        assert!(told.error.expect("it failed").contains("it fails"));
        store.fail(false);
        world.sleep(seconds(15)).await;
        let report = board.report(&[Window::Hour]).expect("no damage");
        assert_eq!(report.store.expect("a store").error, None);
        let minutes = |rows: Vec<Row>| -> u64 {
            let minutes = rows.iter().filter(|row| row.resolution.name() == "minute");
            minutes.map(|row| row.packed.succeeded).sum()
        };
        assert!(minutes(store.rows()) >= 6_000, "the minutes in which it failed are written");
        store.replace();
        let failed = board.failed().await;
        assert!(matches!(failed, Error::Replaced(_)), "{failed}");
    });
}

#[test]
fn target_that_loads_is_not_probed_and_loading_goes_on_where_it_stopped() {
    World::run(10, false, async |world| {
        let (process, server) = (world.process("board", 0), Server::new(&world, 0));
        server.fail_loading_after(Some(10));
        let asked = Options { records: 20_500, ..options() };
        let board = start(&process, asked, &server).await;
        world.sleep(seconds(1)).await;
        assert_eq!(server.records(), 10_000);
        let report = board.report(&[Window::Run]).expect("no damage");
        assert!(report.targets[0].error.as_ref().expect("it failed").contains("disk full"));
        server.fail_loading_after(None);
        server.brown_out(Some((100, seconds(1))));
        let probing = || board.report(&[]).expect("no damage").targets[0].probing;
        let mut waited = 0;
        while probing() {
            world.sleep(seconds(1)).await;
            waited += 1;
            assert!(waited < 60, "it never loads");
        }
        world.sleep(seconds(60)).await;
        assert_eq!(server.records(), 20_500);
        let report = board.report(&[]).expect("no damage");
        assert!(report.targets[0].probing && report.targets[0].error.is_none());
    });
}

#[test]
fn target_that_is_down_from_the_start_is_shown_as_down() {
    World::run(11, false, async |world| {
        let (process, server) = (world.process("board", 0), Server::new(&world, RECORDS));
        server.kill();
        let board = start(&process, options(), &server).await;
        world.sleep(seconds(30)).await;
        server.restart();
        world.sleep(seconds(30)).await;
        let figures = figures(&board, Operation::Read, Window::Run);
        assert!(figures.failures.unreachable.abs_diff(300) <= 2, "{figures:?}");
        assert!(figures.succeeded.abs_diff(300) <= 2, "{figures:?}");
    });
}

#[test]
fn history_from_the_future_or_from_before_all_that_is_kept_is_refused_and_stays() {
    World::run(13, false, async |world| {
        let (server, store) = (Server::new(&world, RECORDS), Memory::default());
        let first = world.process("board", 0);
        let board = kept(&first, options(), &server, Some(&store)).await.expect("starts");
        world.sleep(seconds(120)).await;
        assert_eq!(board.stop(seconds(1)).await, None);
        let rows = store.rows();
        for (days, refused) in [(-1, true), (400, true), (30, false)] {
            let process = world.process("board", 1);
            process.set_clock_skew(days * 86_400_000_000);
            let started = kept(&process, options(), &server, Some(&store)).await;
            match started {
                Err(Error::Future { hours: 24 }) => assert_eq!(days, -1),
                Err(Error::Past { days: 400 }) => assert_eq!(days, 400),
                other => assert!(!refused && other.is_ok(), "{days} days: {other:?}"),
            }
            assert_eq!(store.rows(), rows);
        }
    });
}

/// One thing that happens to the server or to the board, and how it ends.
async fn mishap(world: &World, server: &Server, board: &Process) {
    let lasts = Duration::from_millis(world.draw(8_000));
    match world.draw(7) {
        0 => {
            server.freeze();
            world.sleep(lasts).await;
            server.thaw();
        }
        1 => {
            server.kill();
            world.sleep(lasts).await;
            server.restart();
        }
        2 => {
            server.brown_out(Some((1 + world.draw(100), Duration::from_millis(world.draw(9_000)))));
            world.sleep(lasts).await;
            server.brown_out(None);
        }
        3 => {
            server.refuse(true);
            world.sleep(lasts).await;
            server.refuse(false);
        }
        4 => {
            board.freeze();
            world.sleep(lasts).await;
            board.thaw();
        }
        5 => {
            server.freeze();
            board.freeze();
            world.sleep(lasts).await;
            board.thaw();
            world.sleep(lasts).await;
            server.thaw();
        }
        _ => world.sleep(lasts).await,
    }
}

#[test]
fn whatever_happens_every_operation_that_was_due_is_counted_once() {
    for seed in 100..110 {
        World::run(seed, false, async |world| {
            let (process, server) = (world.process("board", 0), Server::new(&world, RECORDS));
            let (lanes, waiting) = (1 + world.draw(16), 1 + world.draw(60));
            let timeout = seconds(1 + world.draw(8));
            let asked = Options {
                lanes: lanes as usize,
                waiting: waiting as usize,
                timeout,
                limit: timeout,
                ..options()
            };
            let begun = world.now();
            let board = start(&process, asked, &server).await;
            while world.now() - begun < seconds(120) {
                mishap(&world, &server, &process).await;
            }
            // A board that was thawed last has yet to find out.
            world.sleep(seconds(1)).await;
            let length = (world.now() - begun).as_secs_f64();
            for of in Operation::ALL {
                let report = operation(&board, of);
                for window in [Window::Run, Window::Hour] {
                    let figures = report.figures(window).expect("a window");
                    let failed: u64 = figures.failures.each().map(|(_, count)| count).sum();
                    assert_eq!(figures.succeeded + failed, figures.operations, "seed {seed}");
                    let counted = figures.operations + report.unprobed + report.under_way;
                    let due = (length * 10.0) as u64;
                    assert!(
                        counted.abs_diff(due) <= 3,
                        "seed {seed}: {counted} of {due}: {report:?}"
                    );
                    let max = figures.latency_ms.max.unwrap_or_default();
                    assert!(max <= timeout.as_secs_f64() * 1_010.0 + 2.0, "seed {seed}: {max}");
                }
                let run = report.figures(Window::Run).expect("a window");
                let unknown = (report.unprobed as f64) / 10.0;
                assert!((run.unknown_seconds - unknown).abs() < 1.5, "seed {seed}: {report:?}");
            }
        });
    }
}

#[test]
fn wrong_options_are_refused() {
    World::run(12, false, async |world| {
        let (process, server) = (world.process("board", 0), Server::new(&world, RECORDS));
        let wrong = [
            Options { rate: 0.0, ..options() },
            Options { rate: f64::NAN, ..options() },
            Options { records: 0, ..options() },
            Options { timeout: seconds(120), ..options() },
            Options { limit: seconds(31), ..options() },
            Options { lanes: 0, ..options() },
        ];
        for options in wrong {
            let refused = kept(&process, options.clone(), &server, None).await;
            assert!(matches!(refused, Err(Error::Option(_))), "{options:?}");
        }
        assert_eq!(server.asked(), 0);
        assert!(USUAL < seconds(1));
    });
}
