//! The guides about destinations: what they show is run as it stands there, against a stand-in for the destination.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use super::world::{Serving, file, shell};
use crate::operators::world::World;

macro_rules! guides {
    ($($test:ident $name:literal)*) => {$(
        #[test]
        fn $test() {
            check(include_str!(concat!("../../../../docs/guides/", $name, ".md")));
        }
    )*};
}

guides! {
    the_gateway_guide_works "gateway"
    the_inbox_guide_works "inbox"
    the_n8n_guide_works "n8n"
    the_make_and_zapier_guide_works "make-zapier"
    the_python_node_and_curl_guide_works "python-node-curl"
    the_lambda_guide_works "aws-lambda"
}

/// Where the guides say that server and destination are.
const SERVER: &str = "127.0.0.1:4080";
const DESTINATION: &str = "127.0.0.1:9400";

#[test]
fn the_ai_guide_works() {
    let model = super::ai::Model::start();
    let path = std::env::join_paths(
        [super::ai::sdks().join("python/bin")]
            .into_iter()
            .chain(std::env::split_paths(&std::env::var_os("PATH").unwrap())),
    );
    let guide = include_str!("../../../../docs/guides/ai.md");
    check_against(guide, &format!("127.0.0.1:{}", model.port), Some(path.unwrap()));
}

fn check(guide: &str) {
    check_against(guide, &stand_in(), None);
}

/// Runs the blocks of a guide, with programs found by another path where one is given.
fn check_against(guide: &str, destination: &str, path: Option<std::ffi::OsString>) {
    let world = World::sqlite();
    let blocks: Vec<(&str, &str)> =
        guide.split("\n```").skip(1).step_by(2).filter_map(|block| block.split_once('\n')).collect();
    let (_, config) =
        blocks.iter().find(|(language, _)| *language == "yaml").expect("a configuration comes first");
    let here = |text: &str| text.replace(DESTINATION, destination);
    let config = file(&world, "twicesafe.yaml", &here(config));
    let serving = Serving::start(&world, &["--config", &config.display().to_string()]);
    let here = |text: &str| here(text).replace(SERVER, &serving.address);
    let mut script = String::from("set -eu\n");
    let mut executed = 0;
    for (number, (language, text)) in blocks.iter().enumerate() {
        let program = match *language {
            "sh" => {
                script.push_str(&format!("{}\n", here(text)));
                executed += 1;
                continue;
            }
            "python" => ("python3", "py"),
            "js" => ("node", "mjs"),
            _ => continue,
        };
        executed += 1;
        let path = file(&world, &format!("block{number}.{}", program.1), &here(text));
        script.push_str(&format!("{} {}\n", program.0, path.display()));
    }
    assert!(executed > 0, "the guide has lost its blocks");
    if let Some(path) = path {
        script = format!("PATH='{}':$PATH\n{script}", path.to_str().unwrap());
    }
    let output = shell(&world, &script, &[]);
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{out}\n{err}\n{}", serving.log.lock().unwrap());
}

/// Takes whatever is posted, and finds contacts by what their caller calls them.
fn stand_in() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let kept = Arc::<Mutex<Vec<Value>>>::default();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let kept = kept.clone();
            std::thread::spawn(move || serve(stream, &kept));
        }
    });
    address
}

fn serve(mut stream: TcpStream, kept: &Mutex<Vec<Value>>) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    loop {
        let (mut first, mut length) = (String::new(), 0);
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line).ok()? == 0 {
                return None;
            }
            if let Some((name, value)) = line.trim().split_once(": ")
                && name.eq_ignore_ascii_case("content-length")
            {
                length = value.parse().ok()?;
            }
            match line.trim() {
                "" => break,
                text if first.is_empty() => first = text.to_owned(),
                _ => {}
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).ok()?;
        let mut kept = kept.lock().unwrap();
        let (status, answer) = match first.starts_with("GET") {
            true => {
                let wanted =
                    first.split("external_id=").nth(1).and_then(|rest| rest.split([' ', '&']).next());
                let found = |one: &&Value| wanted.is_some_and(|wanted| one["external_id"] == wanted);
                (200, json!({ "items": kept.iter().filter(found).collect::<Vec<_>>() }))
            }
            false => {
                let mut one: Value = serde_json::from_slice(&body).unwrap_or_else(|_| json!({}));
                one["id"] = json!(format!("c_{}", kept.len() + 1));
                kept.push(one.clone());
                (201, one)
            }
        };
        drop(kept);
        let answer = answer.to_string();
        write!(
            stream,
            "HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{answer}",
            answer.len()
        )
        .ok()?;
    }
}
