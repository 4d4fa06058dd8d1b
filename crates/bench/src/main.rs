//! Measures Twicesafe beside its peers, in one run on one machine, and prints ratios.
//!
//! One effect: claim a key, do nothing, store an answer of 1 KiB, all durable; or, for a repeated key (20 %), get the
//! stored answer back. An op is a claim or a settle. See `docs/performance.md` for the last table and the machine.

mod gateway;
mod growth;
mod harness;
mod inbox;
mod naive_postgres;
mod pins;
mod raw_log;
mod report;
mod server;
mod subject;

use std::path::PathBuf;
use std::time::Duration;

use harness::Load;
use report::Report;

/// What to measure, from the command line.
struct Plan {
    folder: PathBuf,
    seconds: f64,
    rounds: usize,
    growth_intents: u64,
    postgres: Option<String>,
    redis: Option<String>,
    server: PathBuf,
    litellm: Option<PathBuf>,
    only: Option<String>,
    by_chance: bool,
    objects: bool,
    parts: Vec<String>,
}

impl Plan {
    /// Whether something is to be measured, by its name.
    fn wants(&self, name: &str) -> bool {
        self.only.as_ref().is_none_or(|only| name.contains(only.as_str()))
    }
}

const HELP: &str = "usage: twicesafe-bench [--folder DIR] [--seconds S] [--rounds N] [--growth INTENTS]
                       [--postgres URL] [--redis HOST:PORT] [--server BINARY] [--litellm PROGRAM] [--only WORDS] [--by-chance] [--objects]
                       [sqlite] [replay] [growth] [postgres] [server] [waiting] [gateway] [soak] [pair] [pins] [inbox]
  --folder    where ledgers are made, on the disk to be measured (a new folder below the current one)
  --seconds   per measurement (1.5)
  --rounds    of each measurement; medians are printed (5)
  --growth    intents present in the growth part, events that wait in the inbox part (1000000; the figures in docs/ are for
              10000000 intents)
  --postgres  an empty database on a private server
  --redis     a Redis with appendonly yes and appendfsync always, for the server and inbox parts
  --server    the twicesafe binary, for the server, waiting, gateway, soak, pair and inbox parts (target/release/twicesafe)
  --litellm   LiteLLM's proxy, for the pins part
  --only      of the sqlite, postgres, server, gateway, pair and inbox parts, only what has these words in its name
  --by-chance keys are chance, as UUIDs are, in place of counted (but for measurements of repeated keys)
  --objects   each event is about an object of its own (a lane), in the inbox part
without parts: sqlite replay growth, and postgres if a URL is given";

fn plan() -> Result<Plan, String> {
    let mut plan = Plan {
        folder: PathBuf::from("bench-ledgers"),
        seconds: 1.5,
        rounds: 5,
        growth_intents: 1_000_000,
        postgres: None,
        redis: None,
        server: PathBuf::from("target/release/twicesafe"),
        litellm: None,
        only: None,
        by_chance: false,
        objects: false,
        parts: Vec::new(),
    };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or_else(|| format!("{word} needs a value"));
        let wrong = |error: &dyn std::fmt::Display| format!("{word}: {error}");
        match word.as_str() {
            "--folder" => plan.folder = value()?.into(),
            "--seconds" => {
                plan.seconds = value()?.parse().map_err(|error: std::num::ParseFloatError| wrong(&error))?
            }
            "--rounds" => {
                plan.rounds = value()?.parse().map_err(|error: std::num::ParseIntError| wrong(&error))?
            }
            "--growth" => {
                plan.growth_intents =
                    value()?.parse().map_err(|error: std::num::ParseIntError| wrong(&error))?;
            }
            "--postgres" => plan.postgres = Some(value()?),
            "--redis" => plan.redis = Some(value()?),
            "--server" => plan.server = value()?.into(),
            "--litellm" => plan.litellm = Some(value()?.into()),
            "--only" => plan.only = Some(value()?),
            "--by-chance" => plan.by_chance = true,
            "--objects" => plan.objects = true,
            "sqlite" | "replay" | "growth" | "postgres" | "server" | "waiting" | "gateway" | "soak"
            | "pair" | "pins" | "inbox" => plan.parts.push(word),
            _ => return Err(HELP.to_owned()),
        }
    }
    if plan.parts.is_empty() {
        plan.parts = ["sqlite", "replay", "growth"].map(str::to_owned).to_vec();
        plan.parts.extend(plan.postgres.is_some().then(|| "postgres".to_owned()));
    }
    Ok(plan)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    if let Ok(said) = std::env::var(gateway::DESTINATION) {
        return gateway::be_the_destination(&said);
    }
    if let Ok(said) = std::env::var(pins::MODEL) {
        return pins::be_the_model(&said);
    }
    if let Ok(path) = std::env::var("TWICESAFE_BENCH_CHILD") {
        return growth::work_until_killed(&path);
    }
    let plan = plan()?;
    std::fs::create_dir_all(&plan.folder)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let result = runtime.block_on(measure(&plan));
    drop(runtime);
    std::fs::remove_dir_all(&plan.folder)?;
    result
}

async fn measure(plan: &Plan) -> Result<(), Box<dyn std::error::Error>> {
    let report = Report::start();
    let load = |callers, repeated_percent| Load {
        callers,
        repeated_percent,
        by_chance: plan.by_chance,
        span: Duration::from_secs_f64(plan.seconds),
    };
    for part in &plan.parts {
        match part.as_str() {
            "sqlite" => sqlite(plan, &report, load).await?,
            "replay" => replay(plan, &report, load).await?,
            "growth" => growth::measure(plan, &report, load).await?,
            "server" => server::measure(plan, &report, load).await?,
            "waiting" => server::waiting(plan, &report, load).await?,
            "gateway" => gateway::measure(plan, &report, load).await?,
            "soak" => gateway::soak(plan, &report).await?,
            "pins" => pins::measure(plan, &report, load).await?,
            "pair" => gateway::pair(plan, &report, load).await?,
            "inbox" => inbox::measure(plan, &report, load).await?,
            _ => {
                let url = plan.postgres.as_deref().ok_or("--postgres URL is needed for that part")?;
                naive_postgres::measure(plan, &report, load, url).await?;
            }
        }
    }
    Ok(())
}

async fn sqlite(
    plan: &Plan,
    report: &Report,
    load: impl Fn(usize, u64) -> Load,
) -> Result<(), Box<dyn std::error::Error>> {
    report.heading("SQLite against a raw log (append + fdatasync + hash map), 20 % repeated keys");
    for (callers, wanted) in [(1, Some(0.5)), (16, None), (64, Some(0.3)), (256, None)] {
        let name = format!("{callers} callers");
        if !plan.wants(&name) {
            continue;
        }
        let mut raw = Vec::new();
        let mut ours = Vec::new();
        for round in 0..plan.rounds {
            let log = raw_log::RawLog::create(&plan.folder.join(format!("raw-{callers}-{round}")))?;
            raw.push(harness::run(&load(callers, 20), &log).await?);
            let store =
                subject::Guarded::sqlite(&plan.folder.join(format!("s-{callers}-{round}.db")), 512).await?;
            ours.push(harness::run(&load(callers, 20), &store).await?);
        }
        report.compare(&name, "raw log", &raw, "SQLite", &ours, wanted);
        if callers == 256 {
            report.tail("SQLite, 256 callers", &ours, 4.0);
        }
    }
    if !plan.wants("one commit per op") {
        return Ok(());
    }
    let mut single = Vec::new();
    let mut grouped = Vec::new();
    for round in 0..plan.rounds {
        let store = subject::Guarded::sqlite(&plan.folder.join(format!("one-{round}.db")), 1).await?;
        single.push(harness::run(&load(64, 20), &store).await?);
        let store = subject::Guarded::sqlite(&plan.folder.join(format!("many-{round}.db")), 512).await?;
        grouped.push(harness::run(&load(64, 20), &store).await?);
    }
    report.compare("64 callers", "one commit per op", &single, "SQLite, grouped", &grouped, Some(8.0));
    Ok(())
}

async fn replay(
    plan: &Plan,
    report: &Report,
    load: impl Fn(usize, u64) -> Load,
) -> Result<(), Box<dyn std::error::Error>> {
    report.heading("Replays in process, 2 threads, SQLite");
    let mut runs = Vec::new();
    for round in 0..plan.rounds {
        let store = subject::Guarded::sqlite(&plan.folder.join(format!("replay-{round}.db")), 512).await?;
        store.fill(10_000).await?;
        runs.push(harness::run(&load(64, 100), &store).await?);
    }
    report.rate("replays", &runs, 100_000.0);
    Ok(())
}
