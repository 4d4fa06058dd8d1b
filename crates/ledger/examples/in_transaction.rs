//! Reserves stock in the caller's own PostgreSQL transaction, once, however often this program is started.
//!
//! ```text
//! cargo run -p twicesafe-ledger --example in_transaction -- postgres://me@localhost/shop order:10492
//! ```
//!
//! The table `stock` is made if it is not there. With a third word `fail` the transaction is rolled back at the end, and
//! neither the reservation nor its record exists.

use std::io::Write;

use tokio_postgres::NoTls;
use twicesafe_ledger::{Answer, Intent, Ledger};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [url, key, rest @ ..] = words.as_slice() else {
        return Err("usage: in_transaction POSTGRES-URL KEY [fail]".into());
    };
    let ledger = Ledger::open(url).await?;
    let (mut client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(connection);
    client
        .batch_execute("CREATE TABLE IF NOT EXISTS stock (item int PRIMARY KEY, reserved int NOT NULL)")
        .await?;
    client.execute("INSERT INTO stock VALUES (7, 0) ON CONFLICT DO NOTHING", &[]).await?;

    let transaction = client.transaction().await?;
    let intent = Intent::new("shop/stock.reserve", key)?;
    let given = ledger
        .transaction(&transaction, &intent, async |_| {
            let row = transaction
                .query_one("UPDATE stock SET reserved = reserved + 1 WHERE item = 7 RETURNING reserved", &[])
                .await?;
            Ok::<_, tokio_postgres::Error>(Answer::of(row.get::<_, i32>(0).to_string()))
        })
        .await?;
    if rest.first().is_some_and(|word| word == "fail") {
        transaction.rollback().await?;
    } else {
        transaction.commit().await?;
    }
    let reserved: i32 = client.query_one("SELECT reserved FROM stock WHERE item = 7", &[]).await?.get(0);
    let how = if given.replayed { "reserved before" } else { "reserved now" };
    writeln!(std::io::stdout().lock(), "{how}; {reserved} in all")?;
    Ok(())
}
