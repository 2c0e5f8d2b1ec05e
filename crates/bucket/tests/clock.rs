//! The store's clock: what HTTP answers say of the time reaches those who ask for it.
#![allow(
    clippy::disallowed_methods,
    reason = "these tests run on the real runtime, against a server of their own"
)]

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use telesto_bucket::{Bucket, BucketOptions, Cause, open};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

/// Answers every request with the status and the date that are set, on one connection each.
async fn serve(answer: Arc<Mutex<(&'static str, &'static str)>>) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("bound");
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = [0; 8192];
            let _ = stream.read(&mut request).await;
            let (status, date) = *answer.lock();
            let reply = format!(
                "HTTP/1.1 {status}\r\n{date}Content-Length: 0\r\nConnection: close\r\n\r\n"
            );
            let _ = stream.write_all(reply.as_bytes()).await;
        }
    });
    format!("http://{address}")
}

#[tokio::test]
async fn clock_of_a_store_reached_by_http_is_what_its_answers_say_and_not_what_failures_say() {
    let answer = Arc::new(Mutex::new(("404 Not Found", "")));
    let endpoint = serve(Arc::clone(&answer)).await;
    let settings = [
        ("aws_endpoint_url", endpoint.as_str()),
        ("aws_access_key_id", "key"),
        ("aws_secret_access_key", "secret"),
        ("aws_region", "us-east-1"),
    ];
    let options = BucketOptions {
        settings: settings.map(|(key, value)| (key.to_owned(), value.to_owned())).into(),
        environment: false,
        operation_timeout: Duration::from_millis(300),
        ..BucketOptions::default()
    };
    let bucket = open("s3://bucket/prefix", &options, telesto_runtime::env()).expect("opens");
    let look = || async {
        // A failure of the server is one of the answers.
        let _ = bucket.get(Cause::Read, "a/1", None).await;
        bucket.clock_micros()
    };
    assert_eq!(bucket.clock_micros(), None, "nothing was asked yet");
    assert_eq!(look().await, None, "it does not say");
    *answer.lock() = ("404 Not Found", "Date: Wed, 25 Nov 2026 01:00:00 GMT\r\n");
    let one = 1_795_568_400_000_000;
    assert_eq!(look().await, Some(one));
    *answer.lock() = ("503 Slow Down", "Date: Wed, 25 Nov 2026 03:00:00 GMT\r\n");
    assert_eq!(look().await, Some(one), "whoever says that is not the store");
    *answer.lock() = ("404 Not Found", "Date: Wed, 25 Nov 2026 00:59:00 GMT\r\n");
    assert_eq!(look().await, Some(one), "an answer that was under way for long");
    *answer.lock() = ("404 Not Found", "Date: Wed, 25 Nov 2026 01:00:07 GMT\r\n");
    assert_eq!(look().await, Some(one + 7_000_000));
}
