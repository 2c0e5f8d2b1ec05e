//! Settings of roles, as clients have them that connect anew.

use tokio_postgres::{Config, NoTls};

use telesto_server::ServerConfig;

use crate::support::{Node, Raw, error_field, startup};

async fn connect(node: &Node, user: &str, options: &str) -> tokio_postgres::Client {
    let mut config = Config::new();
    config.host("127.0.0.1").port(node.address.port()).user(user).dbname("telesto");
    config.options(options);
    let (client, connection) = config.connect(NoTls).await.expect("connects");
    tokio::spawn(connection);
    client
}

async fn shown(client: &tokio_postgres::Client, name: &str) -> String {
    client.query_one(&format!("SHOW {name}"), &[]).await.expect(name).get(0)
}

#[tokio::test]
async fn connection_begins_with_the_settings_of_its_role_and_what_it_asks_for() {
    let node = Node::start(ServerConfig::default()).await;
    let boss = node.client().await;
    let script = "CREATE ROLE ann LOGIN; ALTER ROLE ALL SET work_mem = '1MB'; \
                  ALTER DATABASE telesto SET work_mem = '2MB'; ALTER ROLE ann SET work_mem = '3MB'; \
                  ALTER ROLE ann SET timezone = 'Asia/Tokyo'; ALTER ROLE ann IN DATABASE telesto SET app.tenant = '7'";
    boss.batch_execute(script).await.expect("stored");
    let ann = connect(&node, "ann", "").await;
    assert_eq!(shown(&ann, "work_mem").await, "3MB");
    assert_eq!(shown(&ann, "app.tenant").await, "7");
    ann.batch_execute("SET work_mem = '9MB'; RESET work_mem").await.expect("reset");
    assert_eq!(shown(&ann, "work_mem").await, "3MB");
    let asks = connect(&node, "ann", "-c work_mem=5MB").await;
    assert_eq!(shown(&asks, "work_mem").await, "5MB");
    assert_eq!(shown(&asks, "TimeZone").await, "Asia/Tokyo");
    let new = node.client().await;
    assert_eq!(shown(&new, "work_mem").await, "2MB");
    assert_eq!(shown(&boss, "work_mem").await, "4MB", "it began before");
}

#[tokio::test]
async fn client_is_told_of_what_is_stored_before_it_asks_anything() {
    let node = Node::start(ServerConfig::default()).await;
    let boss = node.client().await;
    let script = "CREATE ROLE ann LOGIN; ALTER ROLE ann SET timezone = 'Asia/Tokyo'; ALTER ROLE ann SET role = nobody";
    boss.batch_execute(script).await.expect("stored");
    let mut raw = Raw::connect(&node).await;
    raw.send(&startup(&[("user", "ann"), ("database", "telesto")])).await;
    let messages = raw.until(b'Z').await;
    let zone = b"TimeZone\0Asia/Tokyo\0";
    assert!(messages.iter().any(|(kind, body)| *kind == b'S' && body == zone));
    let warnings: Vec<_> = messages.iter().filter(|(kind, _)| *kind == b'N').collect();
    assert_eq!(warnings.len(), 1);
    let field = |code| error_field(&warnings[0].1, code);
    assert_eq!(field(b'S').as_deref(), Some("WARNING"));
    assert_eq!(field(b'M').as_deref(), Some("role \"nobody\" does not exist"));
}
