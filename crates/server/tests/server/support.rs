//! A server on the in-memory database, and a client that speaks bytes.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut as _, BytesMut};
use telesto_server::{Server, ServerConfig};
use telesto_sql::{SqlEngine, SqlOptions};
use telesto_txn::memory::MemoryDatabase;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_postgres::{Client, NoTls};

/// Bound on every wait, generous: it only ends tests that hang.
pub const PATIENCE: Duration = Duration::from_secs(60);

pub struct Node {
    pub address: SocketAddr,
    pub server: Server,
}

impl Node {
    pub async fn start(config: ServerConfig) -> Self {
        Self::start_with(config, SqlOptions::default()).await
    }

    pub async fn start_with(mut config: ServerConfig, options: SqlOptions) -> Self {
        let env = telesto_runtime::env();
        let database = Arc::new(MemoryDatabase::new(env.clone()));
        let engine = SqlEngine::open(database, env.clone(), options).await.expect("opens");
        config.listen.get_or_insert("127.0.0.1:0".parse().expect("an address"));
        let server = Server::start(env, engine, config, None, None).await.expect("starts");
        Self { address: server.sql_address().expect("listens"), server }
    }

    pub fn url(&self) -> String {
        format!("host=127.0.0.1 port={} user=telesto dbname=telesto", self.address.port())
    }

    pub async fn client(&self) -> Client {
        let (client, connection) =
            tokio_postgres::connect(&self.url(), NoTls).await.expect("connects");
        tokio::spawn(connection);
        client
    }
}

/// A client that sends what it is told and reads one message at a time.
pub struct Raw {
    pub socket: TcpStream,
    buffer: BytesMut,
}

impl Raw {
    pub async fn connect(node: &Node) -> Self {
        let socket = TcpStream::connect(node.address).await.expect("connects");
        Self { socket, buffer: BytesMut::new() }
    }

    /// Connected and told ReadyForQuery.
    pub async fn ready(node: &Node) -> Self {
        let mut raw = Self::connect(node).await;
        raw.send(&startup(&[("user", "telesto"), ("database", "telesto")])).await;
        raw.until(b'Z').await;
        raw
    }

    pub async fn send(&mut self, bytes: &[u8]) {
        self.socket.write_all(bytes).await.expect("sent");
    }

    /// The next message; `None` at the end.
    pub async fn message(&mut self) -> Option<(u8, Vec<u8>)> {
        loop {
            if self.buffer.len() >= 5 {
                let raw = &self.buffer[1..5];
                let length = u32::from_be_bytes([raw[0], raw[1], raw[2], raw[3]]) as usize;
                if self.buffer.len() > length {
                    let frame = self.buffer.split_to(length + 1);
                    return Some((frame[0], frame[5..].to_vec()));
                }
            }
            let read = self.socket.read_buf(&mut self.buffer);
            match tokio::time::timeout(PATIENCE, read).await.expect("an answer in time") {
                Ok(0) | Err(_) => return None,
                Ok(_) => {}
            }
        }
    }

    /// Every message up to one of that type.
    pub async fn until(&mut self, kind: u8) -> Vec<(u8, Vec<u8>)> {
        let mut out = Vec::new();
        loop {
            let Some(message) = self.message().await else {
                panic!("the connection ended before {:?}: {out:?}", char::from(kind))
            };
            let done = message.0 == kind;
            out.push(message);
            if done {
                return out;
            }
        }
    }

    /// The types of every message up to ReadyForQuery, and its status, as a text.
    pub async fn kinds(&mut self) -> String {
        let messages = self.until(b'Z').await;
        let mut out: String = messages.iter().map(|(kind, _)| char::from(*kind)).collect();
        out.push(char::from(messages.last().expect("one").1[0]));
        out
    }
}

pub fn frame(kind: u8, body: &[u8]) -> Vec<u8> {
    let mut out = vec![kind];
    out.put_u32(body.len() as u32 + 4);
    out.put_slice(body);
    out
}

pub fn startup(parameters: &[(&str, &str)]) -> Vec<u8> {
    let mut body = Vec::new();
    body.put_u32(3 << 16);
    for (name, value) in parameters {
        body.put_slice(name.as_bytes());
        body.put_u8(0);
        body.put_slice(value.as_bytes());
        body.put_u8(0);
    }
    body.put_u8(0);
    let mut out = Vec::new();
    out.put_u32(body.len() as u32 + 4);
    out.put_slice(&body);
    out
}

pub fn query(sql: &str) -> Vec<u8> {
    frame(b'Q', format!("{sql}\0").as_bytes())
}

pub fn parse(name: &str, sql: &str) -> Vec<u8> {
    frame(b'P', format!("{name}\0{sql}\0\0\0").as_bytes())
}

/// Bind of a statement without parameters, all text.
pub fn bind(portal: &str, statement: &str) -> Vec<u8> {
    frame(b'B', format!("{portal}\0{statement}\0\0\0\0\0\0\0").as_bytes())
}

pub fn execute(portal: &str, max_rows: u32) -> Vec<u8> {
    let mut body = format!("{portal}\0").into_bytes();
    body.put_u32(max_rows);
    frame(b'E', &body)
}

pub fn sync() -> Vec<u8> {
    frame(b'S', b"")
}

/// The field of an ErrorResponse.
pub fn error_field(body: &[u8], code: u8) -> Option<String> {
    let field = body.split(|byte| *byte == 0).find(|field| field.first() == Some(&code))?;
    Some(String::from_utf8_lossy(&field[1..]).into_owned())
}
