//! Wire input: frames and messages, the startup dialogue, session tokens, lines of COPY.
//!
//! # Invariants
//! Whether a stream is one frame or another does not depend on how its bytes arrived.
//!
//! # On failure
//! Panics: the finding.

use bytes::{BufMut as _, BytesMut};
use telesto_server::wire::frontend::{Framing, Frontend, next_frame, parse};

use crate::Target;

pub(crate) fn targets() -> Vec<Target> {
    vec![
        Target {
            name: "frontend",
            run: frontend,
            seeds: messages,
            words: &["\0", "\0\0\0\u{4}", "select 1\0", "S\0", "P\0"],
            memory_bytes: 64 << 10,
            runs: 12_000,
        },
        Target {
            name: "startup",
            run: telesto_server::fuzz::startup,
            seeds: || {
                vec![
                    b"user\0ada\0database\0d\0options\0-c a=b\0\0".to_vec(),
                    b"-c search_path=a\\ b --statement-timeout=5 -cwork=1".to_vec(),
                    b"SCRAM-SHA-256\0\0\0\0\x05n,,n=".to_vec(),
                ]
            },
            words: &["user\0", "database\0", "options\0", "-c ", "--", "=", "\\", "\0\0"],
            memory_bytes: 64 << 10,
            runs: 12_000,
        },
        Target {
            name: "session_token",
            run: telesto_server::fuzz::session_token,
            seeds: telesto_server::fuzz::tokens,
            words: &["AQ", "=", "-", "_"],
            memory_bytes: 16 << 10,
            runs: 10_000,
        },
        Target {
            name: "copy_lines",
            run: telesto_sql::fuzz::copy_lines,
            seeds: || {
                let with = |options: &[u8; 4], data: &str| [options, data.as_bytes()].concat();
                vec![
                    with(&[0, 0, 0, 0], "1\tone\n2\t\\N\n\\\\\ta\\tb\\x41\\101\n\\.\nafter\n"),
                    with(&[1, 0, 0, 0], "1,\"a \"\"b\"\"\",\r\n2,\"c\nd\",\\.\n"),
                    with(&[3, b';', b'\'', b'\\'], "1;'it\\'s';\n;;''\n"),
                    with(&[5, b'|', 0, 0], "a|b\n1|2\n"),
                ]
            },
            words: &["\\.", "\\N", "\n", "\r\n", "\"", "\"\"", "\t", ",", "\\", "\\x4", "\\1"],
            memory_bytes: 4 << 20,
            runs: 6_000,
        },
        Target {
            name: "copy_binary",
            run: telesto_sql::fuzz::copy_binary,
            seeds: || {
                let with = |choice: u8, row: &[u8]| {
                    [&[choice][..], b"PGCOPY\n\xff\r\n\0\0\0\0\0\0\0\0\0", row, b"\xff\xff"]
                        .concat()
                };
                vec![
                    with(0, b"\0\x02\0\0\0\x04\0\0\0\x07\0\0\0\x03one\0\x02\xff\xff\xff\xff\xff\xff\xff\xff"),
                    with(
                        1,
                        b"\0\x03\0\0\0\x01\x01\0\0\0\x0a\0\x01\0\0\0\0\0\x02\0\x07\0\0\0\x02\xde\xad",
                    ),
                    with(2, b"\0\x02\0\0\0\x08\0\x02\0\0\0\0\0\0\0\0\0\x08\x3f\xf0\0\0\0\0\0\0"),
                    with(
                        3,
                        b"\0\x03\0\0\0\x100123456789abcdef\0\0\0\x08\0\0\0\0\0\0\0\x05\0\0\0\x04\0\0\x20\0",
                    ),
                ]
            },
            words: &["PGCOPY\n", "\0\0\0\x04", "\0\x02", "\0\x03"],
            // A numeric of ten bytes may have 131,000 digits, and is written and read several
            // times.
            memory_bytes: 64 << 20,
            runs: 6_000,
        },
    ]
}

/// A stream of frames, whole and byte by byte.
fn frontend(bytes: &[u8]) {
    const LIMIT: usize = 1 << 20;
    let mut whole = BytesMut::from(bytes);
    let mut frames = Vec::new();
    let end = loop {
        match next_frame(&mut whole, LIMIT) {
            Ok(Framing::Frame(kind, body)) => {
                if let Ok(message) = parse(kind, &body) {
                    inside(&message, body.len());
                }
                frames.push((kind, body));
            }
            Ok(Framing::Need(bytes)) => {
                assert!(bytes > whole.len(), "it asks for what is there");
                break Ok(whole.len());
            }
            Err(error) => break Err(error),
        }
    };
    let mut arriving = BytesMut::new();
    let mut again = Vec::new();
    let mut ended = Ok(0);
    for byte in bytes {
        arriving.put_u8(*byte);
        match next_frame(&mut arriving, LIMIT) {
            Ok(Framing::Frame(kind, body)) => again.push((kind, body)),
            Ok(Framing::Need(_)) => {}
            Err(error) => {
                ended = Err(error);
                break;
            }
        }
    }
    if ended.is_ok() {
        ended = Ok(arriving.len());
    }
    assert_eq!((again, ended), (frames, end), "byte by byte and at once");
    if let Some((kind, body)) = bytes.split_first() {
        let _ = parse(*kind, body);
    }
}

/// Nothing in a message is longer than its body.
fn inside(message: &Frontend<'_>, body_bytes: usize) {
    let texts = match message {
        Frontend::Query(text) | Frontend::CopyFail(text) => text.len(),
        Frontend::Parse { name, query, types } => name.len() + query.len() + 4 * types.len(),
        Frontend::Bind(bind) => {
            let values: usize = bind.parameters.iter().flatten().map(|value| value.len()).sum();
            bind.portal.len() + bind.statement.len() + values
        }
        Frontend::Describe(_, name) | Frontend::Close(_, name) => name.len(),
        Frontend::Execute { portal, .. } => portal.len(),
        Frontend::CopyData(bytes) | Frontend::Password(bytes) | Frontend::FunctionCall(bytes) => {
            bytes.len()
        }
        Frontend::Flush | Frontend::Sync | Frontend::Terminate | Frontend::CopyDone => 0,
    };
    assert!(texts <= body_bytes, "{message:?} out of {body_bytes} bytes");
}

fn messages() -> Vec<Vec<u8>> {
    let frame = |kind: u8, body: &[u8]| {
        let mut out = vec![kind];
        out.put_u32(body.len() as u32 + 4);
        out.extend_from_slice(body);
        out
    };
    let mut bind = b"p\0s\0".to_vec();
    bind.extend_from_slice(&[0, 1, 0, 1, 0, 2, 0, 0, 0, 2, 7, 8, 255, 255, 255, 255, 0, 1, 0, 1]);
    let mut parse = b"s\0select $1\0".to_vec();
    parse.extend_from_slice(&[0, 1, 0, 0, 0, 23]);
    let all = [
        frame(b'Q', b"select 1\0"),
        frame(b'P', &parse),
        frame(b'B', &bind),
        frame(b'D', b"Ss\0"),
        frame(b'E', b"p\0\0\0\0\x05"),
        frame(b'C', b"Pp\0"),
        frame(b'd', b"1\ttwo\n"),
        frame(b'f', b"no more\0"),
        frame(b'p', b"secret\0"),
        frame(b'S', b""),
    ];
    let mut out = all.to_vec();
    out.push(all.concat());
    out
}
