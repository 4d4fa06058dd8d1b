//! A server to speak to, and how to speak to it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use twicesafe_ledger::{Actor, Ledger, ManualClock, Name, Noted, Open};
use twicesafe_server::config::{self, Configuration};
use twicesafe_server::{Control, NewToken, Right, Server};

/// A server of its own ledger in memory, with a clock that tests move.
pub(crate) struct World {
    pub(crate) address: SocketAddr,
    pub(crate) ledger: Ledger,
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) control: Control,
    serving: tokio::task::JoinHandle<()>,
}

impl World {
    pub(crate) async fn new() -> Self {
        Self::configured("").await
    }

    pub(crate) async fn configured(yaml: &str) -> Self {
        let clock = Arc::new(ManualClock::at(1_800_000_000_000));
        let ledger = Open::at("memory:").clock(clock.clone()).open().await.unwrap();
        Self::on(ledger, clock, yaml).await
    }

    /// With a ledger in a file, which somebody else may open, too. The folder is the test's to remove.
    pub(crate) async fn in_folder(name: &str, yaml: &str) -> (Self, PathBuf) {
        let folder = std::env::temp_dir().join(format!("twicesafe-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let clock = Arc::new(ManualClock::at(1_800_000_000_000));
        let address = format!("sqlite:{}", folder.join("ledger.db").display());
        let ledger = Open::at(&address).clock(clock.clone()).open().await.unwrap();
        (Self::on(ledger, clock, yaml).await, folder)
    }

    pub(crate) async fn on(ledger: Ledger, clock: Arc<ManualClock>, yaml: &str) -> Self {
        let server = Server::start(ledger.clone(), configuration(yaml)).await.unwrap();
        let (url, _) = server.addresses().remove(0);
        let address = url.split("//").nth(1).unwrap().parse().unwrap();
        let control = server.control();
        Self { address, ledger, clock, control, serving: tokio::spawn(server.serve()) }
    }

    /// Stops the server and waits until it has.
    pub(crate) async fn stop(self) {
        self.control.stop();
        self.serving.await.unwrap();
    }

    pub(crate) async fn token(&self, name: &str, rights: &[Right]) -> String {
        self.token_for(name, rights, None, &[], None).await
    }

    pub(crate) async fn token_for(
        &self,
        name: &str,
        rights: &[Right],
        tenant: Option<&str>,
        scopes: &[&str],
        person: Option<&str>,
    ) -> String {
        let new = NewToken {
            name: name.to_owned(),
            tenant: tenant.map(str::to_owned),
            scopes: scopes.iter().map(|scope| (*scope).to_owned()).collect(),
            rights: rights.to_vec(),
            person: person.map(str::to_owned),
            expires_after: None,
        };
        twicesafe_server::create(&self.ledger, new).await.unwrap().0
    }

    pub(crate) async fn get(&self, path: &str) -> Heard {
        self.send("GET", path, &[], b"").await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Heard {
        self.send("POST", path, &[("content-type", "application/json")], body.to_string().as_bytes()).await
    }

    pub(crate) async fn post_as(&self, token: &str, path: &str, body: &Value) -> Heard {
        let headers = [("content-type", "application/json"), ("twicesafe-token", token)];
        self.send("POST", path, &headers, body.to_string().as_bytes()).await
    }

    pub(crate) async fn get_as(&self, token: &str, path: &str) -> Heard {
        self.send("GET", path, &[("authorization", &format!("Bearer {token}"))], b"").await
    }

    pub(crate) async fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Heard {
        let host = self.address.to_string();
        let mut head =
            format!("{method} {path} HTTP/1.1\r\nconnection: close\r\ncontent-length: {}\r\n", body.len());
        if !headers.iter().any(|(name, _)| *name == "host") {
            head.push_str(&format!("host: {host}\r\n"));
        }
        headers.iter().for_each(|(name, value)| head.push_str(&format!("{name}: {value}\r\n")));
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        stream.write_all(&[head.as_bytes(), b"\r\n", body].concat()).await.unwrap();
        let mut bytes = Vec::new();
        let _ = tokio::time::timeout(Duration::from_secs(90), stream.read_to_end(&mut bytes)).await;
        Heard::parse(&bytes)
    }

    /// Sends bytes as they are.
    pub(crate) async fn raw(&self, bytes: &[u8]) -> Heard {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        let _ = stream.write_all(bytes).await;
        let mut heard = Vec::new();
        let _ = tokio::time::timeout(Duration::from_secs(5), stream.read_to_end(&mut heard)).await;
        Heard::parse(&heard)
    }

    /// Decides about an intent as the command line does, which needs no token (S30).
    pub(crate) async fn decide(&self, who: &str, what: &str, about: &Value) -> Noted {
        let text = |field: &str| about[field].as_str().unwrap_or("because");
        let name = Name::new(text("scope"), text("key")).unwrap();
        let who = &Actor::new(who).unwrap();
        let mut seen = (*self.ledger.existing(&name).await.unwrap()).clone();
        seen.record.generation = u32::try_from(about["generation"].as_u64().unwrap()).unwrap();
        let noted = match what {
            "approve" => self.ledger.approve(who, &seen).await,
            "reject" => self.ledger.reject(who, &seen, text("reason")).await,
            "reset" => self.ledger.reset(who, &seen, text("reason")).await,
            other => panic!("`{other}` is no decision"),
        };
        noted.unwrap()
    }

    /// A claim that may act. A backoff takes time, which passes here only when told to.
    pub(crate) async fn permit(&self, body: Value) -> Permit {
        let mut heard = self.post("/v1/claim", &body).await;
        while heard.json["cause"] == "not-due" {
            self.clock.advance(Duration::from_secs(1));
            heard = self.post("/v1/claim", &body).await;
        }
        assert_eq!(heard.status, 201, "{heard:?}");
        permit_in(&heard)
    }
}

/// Intent, fence and secret of a permit.
pub(crate) type Permit = (i64, u64, &'static str);

/// The permit that was told.
pub(crate) fn permit_in(heard: &Heard) -> Permit {
    let permit = &heard.json["permit"];
    let secret = permit["secret"].as_str().unwrap().to_owned().leak();
    (heard.json["intent"].as_i64().unwrap(), permit["fence"].as_u64().unwrap(), secret)
}

pub(crate) fn renew((intent, fence, secret): Permit) -> Value {
    json!({ "intent": intent, "fence": fence, "secret": secret })
}

pub(crate) fn configuration(yaml: &str) -> Configuration {
    config::parse(&format!("listen: 127.0.0.1:0\n{yaml}")).unwrap()
}

/// What was answered.
#[derive(Debug, Clone)]
pub(crate) struct Heard {
    pub(crate) status: u16,
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) text: String,
    pub(crate) json: Value,
}

impl Heard {
    pub(crate) fn parse(bytes: &[u8]) -> Self {
        let text = String::from_utf8_lossy(bytes).into_owned();
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
        let mut lines = head.lines();
        let status = lines
            .next()
            .and_then(|line| line.split(' ').nth(1))
            .and_then(|code| code.parse().ok())
            .unwrap_or(0);
        let headers = lines
            .filter_map(|line| line.split_once(": "))
            .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
            .collect();
        Self {
            status,
            headers,
            json: serde_json::from_str(body).unwrap_or(Value::Null),
            text: body.to_owned(),
        }
    }

    /// Asserts a problem with that status and code.
    #[track_caller]
    pub(crate) fn refused(&self, status: u16, code: &str) -> &Self {
        assert_eq!((self.status, self.json["code"].as_str()), (status, Some(code)), "{self:?}");
        assert_eq!(self.headers["content-type"], "application/problem+json");
        for field in ["type", "title", "message", "hint"] {
            assert!(self.json[field].as_str().is_some_and(|text| !text.is_empty()), "{field}: {self:?}");
        }
        self
    }
}

/// A claim of a key, and nothing more.
pub(crate) fn claim(key: &str) -> Value {
    json!({ "scope": "billing/invoice.send", "key": key, "wait_ms": 0 })
}

/// The same with other fields.
pub(crate) fn claim_with(key: &str, fields: Value) -> Value {
    let mut body = claim(key);
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    body
}

pub(crate) fn settle((intent, fence, secret): Permit, outcome: &str, fields: Value) -> Value {
    let mut body =
        json!({ "intent": intent, "fence": fence, "secret": secret, "generation": 1, "outcome": outcome });
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    body
}
