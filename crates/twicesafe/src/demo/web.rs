//! The shop's web door, which answers 500 the first time although it acted, a workflow that tries again, and a gateway between the
//! two.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use super::shop::{Orders, count, take};

/// How often the workflow tries.
const TRIES: usize = 3;

/// One request to the shop: an order, or whether there is one.
pub(super) fn serve(mut customer: TcpStream, first: &str, orders: &Orders) -> io::Result<()> {
    let mut reader = BufReader::new(customer.try_clone()?);
    let mut length = 0;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        match line.trim().to_ascii_lowercase().split_once(": ") {
            Some(("content-length", value)) => length = value.parse().unwrap_or(0),
            Some(_) => {}
            None => break,
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    let (status, answer) = match first.split_once("?id=").and_then(|(_, rest)| rest.split(' ').next()) {
        Some(name) => (200, format!(r#"{{"orders":{}}}"#, count(orders, name))),
        None => {
            let order: serde_json::Value = serde_json::from_slice(&body)?;
            let name = order["id"].as_str().unwrap_or_default();
            match take(orders, name) {
                1 => (500, r#"{"error":"something went wrong"}"#.to_owned()),
                number => (201, format!(r#"{{"order":"{name}/{number}"}}"#)),
            }
        }
    };
    write!(
        customer,
        "HTTP/1.1 {status} X\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{answer}",
        answer.len()
    )
}

/// The workflow: posts an order, and again until it hears of success.
pub(super) fn order(address: &str, path: &str, name: &str) -> io::Result<()> {
    let body = format!(r#"{{"id":"{name}"}}"#);
    for _ in 0..TRIES {
        let mut shop = TcpStream::connect(address)?;
        write!(
            shop,
            "POST {path} HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        )?;
        let mut answer = String::new();
        shop.read_to_string(&mut answer)?;
        if answer.starts_with("HTTP/1.1 2") {
            break;
        }
    }
    Ok(())
}

/// `twicesafe serve`, between a workflow and the shop.
pub(super) struct Gateway {
    serving: Child,
    pub(super) address: String,
}

impl Gateway {
    pub(super) fn start(folder: &Path, shop: &str) -> io::Result<Self> {
        let config = folder.join("twicesafe.yaml");
        let text = format!(
            "destinations:
  shop:
    base: http://{shop}
    auth: none
    routes:
      - match: POST /orders
        action: order.place
        key: request.body.id
        recovery: {{ lookup: {{ get: '/orders?id={{{{ key }}}}', found: answer.body.orders > 0 }} }}
"
        );
        std::fs::write(&config, text)?;
        let mut serving = Command::new(std::env::current_exe()?)
            .args(["serve", "--listen", "127.0.0.1:0", "--config"])
            .arg(&config)
            .arg("--ledger")
            .arg(format!("sqlite:{}", folder.join("gateway.db").display()))
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let mut line = String::new();
        if let Some(out) = serving.stdout.take() {
            BufReader::new(out).read_line(&mut line)?;
        }
        let address = line.split("http://").nth(1).and_then(|rest| rest.split(' ').next()).map(str::to_owned);
        match address {
            Some(address) => Ok(Self { serving, address }),
            None => {
                let _ = serving.kill();
                Err(io::Error::other("the gateway did not start"))
            }
        }
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        let _ = self.serving.kill();
        let _ = self.serving.wait();
    }
}
