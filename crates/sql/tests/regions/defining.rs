//! The region that makes definitions: it gives them to another one, or is lost, and another one
//! takes over.

use std::time::Duration;

use telesto_common::RegionId;
use telesto_testkit::World;

use super::{NAMES, REGIONS, Sites, below, seeds};

impl Sites {
    /// Gives the definitions to another region, and waits until it makes its own.
    async fn give(&self, from: usize, to: usize) {
        let sql = format!("ALTER DATABASE telesto SET telesto.defining_region = '{}'", NAMES[to]);
        self.must(from, &sql).await;
        self.reaches(from, to).await;
    }

    /// Which region makes definitions, as each sees it.
    async fn defining(&self, region: usize) -> String {
        let sql = "SELECT string_agg(name, ' ') FROM telesto_regions WHERE defines";
        self.must(region, sql).await[0][0].clone().unwrap_or_default()
    }

    /// Everything that is defined in public, as a region has it.
    async fn defined(&self, region: usize) -> Vec<Vec<Option<String>>> {
        let sql = "SELECT c.relname, c.relkind, a.attname, a.atttypid FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 WHERE n.nspname = 'public' ORDER BY 1, 3";
        self.must(region, sql).await
    }

    async fn code(&self, region: usize, sql: &str) -> String {
        match self.run(region, sql).await {
            Ok(_) => "00000".to_owned(),
            Err(error) => error.code().0.to_owned(),
        }
    }
}

#[test]
fn definitions_are_given_to_another_region_and_back() {
    World::run(1, false, async |world| {
        let sites = Sites::running(&world).await;
        sites.must(0, "CREATE TABLE old (id int PRIMARY KEY, name text)").await;
        sites.must(0, "CREATE TABLE idle (id serial PRIMARY KEY, name text)").await;
        sites.must(0, "INSERT INTO old SELECT g, 'n' || g FROM generate_series(1, 50) g").await;
        let wrong = "ALTER DATABASE telesto SET telesto.defining_region = 'mars'";
        assert_eq!(sites.code(0, wrong).await, "42704");
        sites.quiet().await;
        let eu = "ALTER DATABASE telesto SET telesto.defining_region = 'eu'";
        assert_eq!(sites.code(1, eu).await, "25006", "only the region that has them gives them");
        sites.give(0, 1).await;
        assert_eq!(sites.code(0, "CREATE TABLE no (id int)").await, "25006");
        assert_eq!(sites.code(2, "CREATE TABLE no (id int)").await, "25006");
        sites.must(1, "CREATE TABLE new (id int PRIMARY KEY, name text UNIQUE)").await;
        sites.must(1, "ALTER TABLE old ADD COLUMN more int").await;
        sites.quiet().await;
        for region in 0..REGIONS {
            assert_eq!(sites.defining(region).await, "eu");
        }
        // What is defined there is written there; what was, where it was. Writes find their way
        // from everywhere.
        for region in 0..REGIONS {
            sites.must(region, &format!("INSERT INTO new VALUES ({region}, 'r{region}')")).await;
            sites.must(region, &format!("UPDATE old SET more = 1 WHERE id = {}", region + 1)).await;
            sites.must(region, &format!("INSERT INTO idle (name) VALUES ('{region}')")).await;
        }
        assert_eq!(
            sites
                .run_at_home(0, "INSERT INTO new VALUES (9, 'x')")
                .await
                .expect_err("elsewhere")
                .code()
                .0,
            "25006"
        );
        sites.run_at_home(1, "INSERT INTO new VALUES (9, 'x')").await.expect("at home");
        sites.quiet().await;
        assert_eq!(sites.check("new").await.len(), 4);
        assert_eq!(sites.check("old").await.len(), 50);
        assert_eq!(sites.check("idle").await.len(), 3);
        // A home moves by a definition of the new region: from the one before it, which has to say
        // that it has stopped.
        sites.must(1, "ALTER TABLE old SET (telesto.home = 'ap')").await;
        sites.settles().await;
        sites.run_at_home(2, "INSERT INTO old VALUES (100, 'ap')").await.expect("at home");
        // Indexes of what others write, driven from there.
        let told = sites.meanwhile(1, "CREATE INDEX old_name ON old (name)");
        sites.outcome(&told).await.expect("an index");
        sites.quiet().await;
        sites.give(1, 0).await;
        assert_eq!(sites.code(1, "CREATE TABLE no (id int)").await, "25006");
        sites.must(0, "DROP TABLE new").await;
        sites.must(0, "CREATE TABLE last (id int PRIMARY KEY)").await;
        sites.quiet().await;
        sites.tend().await;
        for region in 0..REGIONS {
            assert_eq!(sites.defining(region).await, "us");
            assert_eq!(sites.defined(region).await, sites.defined(0).await);
        }
        assert_eq!(sites.check("old").await.len(), 51);
        sites.verify().await;
    });
}

/// A region that begins after that gets definitions from the new region, and rows from all.
#[test]
fn region_that_joins_gets_the_definitions_from_whoever_makes_them() {
    World::run(1, false, async |world| {
        let mut sites = Sites::prepared(&world);
        sites.start(0).await;
        sites.start(1).await;
        sites.must(0, "CREATE TABLE old (id int PRIMARY KEY, name text UNIQUE)").await;
        sites.must(0, "CREATE TABLE every (id int PRIMARY KEY, name text)").await;
        sites.must(0, "CREATE INDEX every_name ON every (name)").await;
        sites.must(0, "ALTER TABLE every SET (telesto.home = 'any')").await;
        sites.must(0, "INSERT INTO every SELECT g, 'us' FROM generate_series(1, 50) g").await;
        sites.must(0, "ALTER TABLE old SET (telesto.home = 'eu')").await;
        sites.reaches(0, 1).await;
        sites.must(1, "INSERT INTO old SELECT g, 'n' || g FROM generate_series(1, 50) g").await;
        sites.give(0, 1).await;
        sites.must(1, "CREATE TABLE new (id int PRIMARY KEY, name text UNIQUE)").await;
        sites.must(1, "INSERT INTO new SELECT g, 'n' || g FROM generate_series(1, 50) g").await;
        sites.must(1, "INSERT INTO every SELECT g, 'eu' FROM generate_series(51, 90) g").await;
        // What the region before it has comes last: its definitions would be too late for the rows
        // of the other one.
        sites.net.cut(NAMES[0], NAMES[2]);
        let (net, env) = (sites.net.clone(), world.env.clone());
        world.env.spawn("healing", async move {
            env.clock.sleep(Duration::from_secs(5)).await;
            net.heal();
        });
        sites.start(2).await;
        sites.settles().await;
        sites.quiet().await;
        assert_eq!(sites.defining(2).await, "eu");
        assert_eq!(sites.check("old").await.len(), 50);
        assert_eq!(sites.check("new").await.len(), 50);
        assert_eq!(sites.check("every").await.len(), 90);
        sites.verify().await;
    });
}

/// Definitions wander while every region defines and writes, links are cut and regions killed.
#[test]
fn definitions_wander_under_work_and_all_regions_end_with_the_same() {
    let mut seen = [0; 5];
    for seed in seeds() {
        World::run(seed, false, async |world| {
            let mut sites = Sites::running(&world).await;
            let mut tables = 0;
            for step in 0..60 {
                let mut region = below(&world, REGIONS as u64) as usize;
                let table = below(&world, tables + 1);
                let any = NAMES[below(&world, REGIONS as u64) as usize];
                let (kind, sql) = match below(&world, 12) {
                    0 => {
                        (0, format!("ALTER DATABASE telesto SET telesto.defining_region = '{any}'"))
                    }
                    1..=3 => (
                        1,
                        format!("CREATE TABLE t{tables} (id int PRIMARY KEY, name text UNIQUE)"),
                    ),
                    4 => (2, format!("ALTER TABLE t{table} ADD COLUMN c{step} int")),
                    5 => (2, format!("ALTER TABLE t{table} SET (telesto.home = '{any}')")),
                    6 => (3, format!("DROP TABLE t{table}")),
                    _ => (4, format!("INSERT INTO t{table} VALUES ({step}, 'n{step}')")),
                };
                // Most definitions are made where a client would find that they can be.
                if kind < 4 && below(&world, 4) > 0 {
                    for (other, name) in NAMES.iter().enumerate() {
                        if sites.defining(other).await == *name {
                            region = other;
                        }
                    }
                }
                let told = sites.run(region, &sql).await;
                if std::env::var("TELESTO_STORY").is_ok() {
                    let error = told.as_ref().err().map(ToString::to_string);
                    println!("{step} {} {sql}: {error:?}", NAMES[region]);
                }
                if told.is_ok() {
                    seen[kind] += 1;
                    tables += u64::from(kind == 1);
                }
                sites.disturb().await;
            }
            sites.net.heal();
            sites.settled().await;
            sites.quiet().await;
            sites.settles().await;
            sites.quiet().await;
            let first = sites.defined(0).await;
            for (region, name) in NAMES.iter().enumerate() {
                assert_eq!(sites.defined(region).await, first, "seed {seed}: {name}");
                assert_eq!(sites.defining(region).await, sites.defining(0).await, "seed {seed}");
            }
            let names = sites.must(0, "SELECT relname FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace WHERE relkind = 'r' AND nspname = 'public'").await;
            for name in names.iter().filter_map(|row| row[0].clone()) {
                sites.check(&name).await;
            }
        });
    }
    assert!(seen.iter().all(|count| *count > 0), "something never came about: {seen:?}");
}

/// The region that makes definitions is gone for good, in the middle of work.
#[test]
fn another_region_takes_over_from_the_one_that_is_lost() {
    for seed in seeds() {
        World::run(seed, false, async |world| {
            let mut sites = Sites::running(&world).await;
            sites.must(0, "CREATE TABLE a (id int PRIMARY KEY, name text UNIQUE)").await;
            sites.must(0, "CREATE TABLE b (id int PRIMARY KEY, name text)").await;
            sites.must(0, "ALTER TABLE b SET (telesto.home = 'ap')").await;
            sites.must(0, "INSERT INTO a SELECT g, 'n' || g FROM generate_series(1, 30) g").await;
            sites.settles().await;
            sites.quiet().await;
            // What one of the two has last of the lost one, and the other has not.
            let (one, other) = if below(&world, 2) == 0 { (1, 2) } else { (2, 1) };
            sites.net.cut(NAMES[0], NAMES[other]);
            sites.must(0, "CREATE TABLE late (id int PRIMARY KEY, name text)").await;
            sites.must(0, "INSERT INTO late VALUES (1, 'late')").await;
            sites.must(0, "INSERT INTO a VALUES (100, 'late')").await;
            sites.reaches(0, one).await;
            sites.kill(0);
            sites.net.heal();
            // Told different names, nobody takes over.
            sites.lost = vec![(0, [0, 1, 2])];
            for region in 1..REGIONS {
                sites.kill(region);
                sites.start(region).await;
            }
            for _ in 0..50 {
                for region in 1..REGIONS {
                    let taken = sites.at(region).regions.inherits_from(RegionId(0)).await;
                    assert!(!matches!(taken, Ok(true)), "seed {seed}: both would take over");
                }
                world.sleep(Duration::from_millis(200)).await;
            }
            assert_eq!(sites.code(1, "CREATE TABLE no (id int)").await, "25006");
            sites.lost = vec![(0, [0, 1, 1])];
            sites.kill(2);
            sites.start(2).await;
            let mut taken = false;
            for _ in 0..300 {
                taken = sites.at(1).regions.inherits_from(RegionId(0)).await.unwrap_or_default();
                if taken {
                    break;
                }
                world.sleep(Duration::from_millis(200)).await;
            }
            assert!(taken, "seed {seed}: {:?}", sites.at(1).regions.status());
            assert!(!sites.at(2).regions.is_heir_of(RegionId(0)));
            let sql = &sites.at(1).sql;
            sql.take_over_definitions(RegionId(0)).await.expect("takes over");
            let named = [(1, "eu".to_owned(), String::new()), (2, "ap".to_owned(), String::new())];
            sql.name_regions(&named, &[]).await.expect("names");
            sites.must(1, "CREATE TABLE new (id int PRIMARY KEY, name text UNIQUE)").await;
            sites.must(1, "ALTER TABLE a ADD COLUMN more int").await;
            for (from, to) in [(1, 2), (2, 1), (1, 2)] {
                sites.reaches(from, to).await;
            }
            for region in 1..REGIONS {
                assert_eq!(sites.defining(region).await, "eu", "seed {seed}");
                sites
                    .must(region, &format!("INSERT INTO new VALUES ({region}, 'r{region}')"))
                    .await;
                sites
                    .must(region, &format!("INSERT INTO a VALUES (20{region}, 'r{region}')"))
                    .await;
                sites.must(region, &format!("INSERT INTO b VALUES ({region}, 'r{region}')")).await;
                sites.must(region, &format!("INSERT INTO late VALUES (20{region}, 'r')")).await;
            }
            let told = sites.meanwhile(1, "CREATE INDEX b_name ON b (name)");
            sites.outcome(&told).await.expect("an index");
            for (from, to) in [(1, 2), (2, 1), (1, 2)] {
                sites.reaches(from, to).await;
            }
            for (table, rows) in [("a", 33), ("b", 2), ("late", 3), ("new", 2)] {
                let all = format!("SELECT * FROM {table} ORDER BY 1");
                let first = sites.must(1, &all).await;
                assert_eq!(first.len(), rows, "seed {seed}: {table}");
                assert_eq!(sites.must(2, &all).await, first, "seed {seed}: {table}");
                for region in 1..REGIONS {
                    let check = format!("SELECT telesto_check_table('{table}')");
                    sites.must(region, &check).await;
                }
            }
            assert_eq!(sites.defined(1).await, sites.defined(2).await, "seed {seed}");
        });
    }
}
