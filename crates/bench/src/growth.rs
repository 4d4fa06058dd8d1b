//! What becomes of it when there is a lot: throughput, size, reopening after SIGKILL, purging while claims go on.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use twicesafe_core::Policy;
use twicesafe_ledger::Ledger;
use twicesafe_store::{Address, Options};

use crate::Plan;
use crate::harness::{self, Load, Run};
use crate::report::{Report, median, middle};
use crate::subject::Guarded;

pub(crate) async fn measure(
    plan: &Plan,
    report: &Report,
    load: impl Fn(usize, u64) -> Load,
) -> Result<(), Box<dyn std::error::Error>> {
    let intents = plan.growth_intents;
    report.heading(&format!("Growth: {intents} intents present, SQLite"));
    let path = plan.folder.join("growth.db");
    grow(&path, intents, report).await?;
    let store = Guarded::sqlite(&path, 512).await?;
    let mut large = Vec::new();
    let mut empty = Vec::new();
    for round in 0..plan.rounds {
        let fresh = Guarded::sqlite(&plan.folder.join(format!("empty-{round}.db")), 512).await?;
        empty.push(harness::run(&load(64, 20), &fresh).await?);
        large.push(harness::run(&load(64, 20), &store.with_prefix(&format!("g{round}:"))).await?);
    }
    report.compare("64 callers", "empty", &empty, "grown", &large, Some(0.35));
    drop(store);
    let bytes = std::fs::metadata(&path)?.len();
    let settled = settled(&path).await?;
    report.at_most("disk per settled intent", bytes as f64 / settled as f64 / 1000.0, "KB", 2.5);
    reopen(plan, report, &path).await?;
    std::fs::remove_file(&path)?;
    purge(plan, report, load).await
}

/// Makes a large ledger: one effect through the store, then copies of its rows, with other numbers, keys and hashes. The rows
/// are the store's own, and the index of hashes is filled in random order, as it would be; only the syncs are left out.
async fn grow(path: &Path, intents: u64, report: &Report) -> Result<(), Box<dyn std::error::Error>> {
    let store = Guarded::sqlite(path, 512).await?;
    store.fill_from(0, 1).await?;
    drop(store);
    let started = Instant::now();
    let file = rusqlite::Connection::open(path)?;
    file.execute_batch(
        "PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; PRAGMA locking_mode = EXCLUSIVE;
         PRAGMA cache_size = -4000000; PRAGMA temp_store = MEMORY",
    )?;
    let columns = |table: &str| -> rusqlite::Result<Vec<String>> {
        file.prepare(&format!("SELECT name FROM pragma_table_info('{table}')"))?
            .query_map([], |row| row.get(0))?
            .collect()
    };
    for table in ["intent", "answer", "journal"] {
        let columns = columns(table)?;
        let copied = columns.iter().map(|column| match (table, column.as_str()) {
            ("intent", "id") | ("answer" | "journal", "intent") => "n".to_owned(),
            ("intent", "hash") => "randomblob(16)".to_owned(),
            ("intent", "key") => "'order:' || n".to_owned(),
            (_, column) => format!("t.{column}"),
        });
        let sql = format!(
            "WITH RECURSIVE numbers(n) AS (SELECT 2 UNION ALL SELECT n + 1 FROM numbers WHERE n < {intents})
             INSERT INTO {table} ({}) SELECT {} FROM numbers CROSS JOIN temp.sample t",
            columns.join(", "),
            copied.collect::<Vec<_>>().join(", ")
        );
        // Reading from the table that is written to would make SQLite keep all rows aside first.
        file.execute_batch(&format!("CREATE TEMP TABLE sample AS SELECT * FROM main.{table}"))?;
        file.execute_batch("BEGIN")?;
        file.execute(&sql, [])?;
        file.execute_batch("COMMIT; DROP TABLE temp.sample")?;
    }
    file.execute(
        "UPDATE tally SET n = ?1 WHERE hour = 1000000000 AND name IN ('standing: done', 'last intent')",
        [i64::try_from(intents)?],
    )?;
    drop(file);
    report.line(&format!("  {intents} intents made in {:.0} s", started.elapsed().as_secs_f64()));
    Ok(())
}

async fn settled(path: &Path) -> Result<u64, Box<dyn std::error::Error>> {
    let ledger = Ledger::open(&format!("sqlite:{}", path.display())).await?;
    let now = ledger.store().now().await?;
    Ok(ledger.store().statistics(now, now).await?.standing(twicesafe_core::Status::Done))
}

/// Kills a process in the middle of its work and opens what it left behind.
async fn reopen(plan: &Plan, report: &Report, path: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let mut took = Vec::new();
    for _ in 0..plan.rounds {
        let mut child = Command::new(std::env::current_exe()?)
            .env("TWICESAFE_BENCH_CHILD", path)
            .stdout(Stdio::piped())
            .spawn()?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().ok_or("no output")?).read_line(&mut line)?;
        tokio::time::sleep(Duration::from_secs(1)).await;
        child.kill()?;
        child.wait()?;
        let started = Instant::now();
        let store = Guarded::sqlite(path, 512).await?;
        store.store.now().await?;
        took.push(started.elapsed().as_secs_f64());
    }
    report.at_most("reopening after SIGKILL", middle(&mut took), "s", 0.2);
    Ok(())
}

/// What the child of [`reopen`] does.
pub(crate) fn work_until_killed(path: &str) -> Result<(), Box<dyn std::error::Error>> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let store = Guarded::sqlite(Path::new(path), 512).await?;
        Report.line("open");
        let load =
            Load { callers: 64, repeated_percent: 20, by_chance: false, span: Duration::from_secs(60) };
        harness::run(&load, &store.with_prefix(&format!("killed-{}:", std::process::id()))).await?;
        Ok(())
    })
}

/// Claims while a sweep purges, against claims alone.
async fn purge(
    plan: &Plan,
    report: &Report,
    load: impl Fn(usize, u64) -> Load,
) -> Result<(), Box<dyn std::error::Error>> {
    let policy = Policy {
        retention: Duration::from_millis(1),
        act_max: Policy::default().lease,
        tombstone: Duration::from_secs(3600),
        ..Policy::default()
    };
    let mut alone: Vec<Run> = Vec::new();
    let mut purging: Vec<Run> = Vec::new();
    let (mut purged, mut outlasted) = (0, 0);
    for round in 0..plan.rounds.min(3) {
        let path = plan.folder.join(format!("purge-{round}.db"));
        let clock = std::sync::Arc::new(twicesafe_store::ManualClock::at(1_800_000_000_000));
        let options = Options { clock: clock.clone(), ..Options::default() };
        let store = Guarded::open(&Address::Sqlite(path), options, policy.clone()).await?;
        store.fill_from(0, 300_000).await?;
        alone.push(harness::run(&load(64, 0), &store.with_prefix("alone:")).await?);
        clock.advance(Duration::from_secs(20));
        clock.advance(Duration::from_secs(20));
        for _ in 0..4 {
            // In steps, so that it does not look like a jump of the clock.
            clock.advance(Duration::from_secs(20));
            store.store.now().await?;
        }
        let ledger = Ledger::on(store.store.clone(), twicesafe_core::Actor::new("bench")?);
        let sweeping =
            tokio::spawn(async move { while ledger.sweep().await.is_ok_and(|swept| swept.purged > 0) {} });
        purging.push(harness::run(&load(64, 0), &store.with_prefix("purging:")).await?);
        outlasted += usize::from(!sweeping.is_finished());
        sweeping.abort();
        let now = store.store.now().await?;
        purged += store.store.statistics(now, now).await?.tombstones();
    }
    let ratio = median(&purging).ops_per_second / median(&alone).ops_per_second;
    report.at_least(
        &format!(
            "claims while purging against claims alone ({purged} purged; the sweep outlasted {outlasted} of {} measurements)",
            purging.len()
        ),
        ratio,
        0.67,
    );
    Ok(())
}
