//! Opening a ledger in a database: is it ours, is it up to date? Whether it is safe every connection asks (`fitness`).

use tokio_postgres::Client;
use tokio_postgres::types::{ToSql, Type};
use twicesafe_core::Timestamp;

use super::columns::{at, get};
use super::connect::Failure;
use super::rows::RowType;
use super::write::RowTypes;
use crate::HashKey;
use crate::error::StoreError;
use crate::secret::{Keys, LedgerSecret};

pub(super) const MIGRATIONS: &[&str] = &[include_str!("../../migrations/postgres/0001_ledger.sql")];
/// Keeps processes that start at once from migrating at once. "TwSf" and a number.
pub(super) const MIGRATION_LOCK: i64 = 0x5477_5366_0000_0001;
/// Our tables, to tell an empty place from somebody else's.
const TABLES: [&str; 12] = [
    "ledger",
    "intent",
    "earlier_answer",
    "agenda",
    "lane",
    "lane_waiting",
    "note",
    "journal",
    "journal_page",
    "reminder",
    "tally",
    "tallied",
];

/// What is known of a ledger once it is open.
pub(super) struct Opened {
    pub(super) hash_key: HashKey,
    pub(super) keys: Keys,
    /// Where its tables are, quoted and with a dot, to be put before their names.
    pub(super) schema: String,
    /// The number of the database it is in.
    pub(super) database: u32,
    pub(super) now: Timestamp,
    pub(super) recovering_since: Option<Timestamp>,
    pub(super) row_types: RowTypes,
}

/// Makes or migrates the ledger.
pub(super) async fn ledger(
    client: &Client,
    shown: &str,
    secret: Option<&LedgerSecret>,
) -> Result<Opened, Failure> {
    client.batch_execute("BEGIN ISOLATION LEVEL READ COMMITTED").await?;
    let opened = migrate(client, shown, secret).await;
    match &opened {
        Ok(_) => client.batch_execute("COMMIT").await?,
        Err(_) => drop(client.batch_execute("ROLLBACK").await),
    }
    opened
}

/// Brings the schema up to date. Safe when several processes start at once: the first takes the lock, the others find
/// nothing left to do.
async fn migrate(client: &Client, shown: &str, secret: Option<&LedgerSecret>) -> Result<Opened, Failure> {
    client.query_typed("SELECT pg_advisory_xact_lock($1)", &[(&MIGRATION_LOCK, Type::INT8)]).await?;
    let sql =
        "SELECT quote_ident(current_schema()), d.oid FROM pg_database d WHERE d.datname = current_database()";
    let row = client.query_typed_one(sql, &[]).await?;
    let no_schema = || StoreError::NoSchema(shown.to_owned());
    let schema = format!("{}.", get::<Option<&str>>(&row, 0)?.ok_or_else(no_schema)?);
    let database = get(&row, 1)?;
    let known = MIGRATIONS.len() as i64;
    let found = schema_version(client, shown).await?;
    if found > known {
        return Err(StoreError::Newer { found, known }.into());
    }
    for migration in &MIGRATIONS[usize::try_from(found).unwrap_or(0)..] {
        client.batch_execute(migration).await?;
    }
    if found == 0 {
        let key = HashKey::random();
        let sealed = Keys::of_new_database(secret).sealed();
        let sql = format!(
            "INSERT INTO {schema}ledger (one, schema_version, hash_key, sealed_key) VALUES (1, $1, $2, $3)"
        );
        let row: [(&(dyn ToSql + Sync), Type); 3] =
            [(&known, Type::INT8), (&key.bytes(), Type::BYTEA), (&sealed.as_slice(), Type::BYTEA)];
        client.query_typed(&sql, &row).await?;
    }
    // Also tells at once whether the ledger can be written, not only when the first claim comes.
    let sql = format!(
        "UPDATE {schema}ledger SET schema_version = $1 RETURNING hash_key,
         (extract(epoch FROM clock_timestamp()) * 1000)::bigint, recovering_since, sealed_key"
    );
    let row = client.query_typed_one(&sql, &[(&known, Type::INT8)]).await?;
    let (keys, is_sealed_anew) = Keys::of_database(shown, secret, get(&row, 3)?)?;
    if is_sealed_anew {
        let sql = format!("UPDATE {schema}ledger SET sealed_key = $1");
        client.query_typed(&sql, &[(&keys.sealed().as_slice(), Type::BYTEA)]).await?;
        tracing::warn!("{shown} had no secret and has one now: nobody opens it any more without");
    }
    let row_types = RowTypes {
        intent: row_type(client, "intent").await?,
        agenda: row_type(client, "agenda").await?,
        lane: row_type(client, "lane").await?,
        lane_waiting: row_type(client, "lane_waiting").await?,
        entry: row_type(client, "entry").await?,
        seldom: row_type(client, "seldom").await?,
    };
    Ok(Opened {
        row_types,
        hash_key: HashKey::kept(get(&row, 0)?)?,
        keys,
        schema,
        database,
        now: Timestamp::from_millis(get(&row, 1)?),
        recovering_since: at(&row, 2)?,
    })
}

/// What the database calls the rows of a table, or the values of a type of ours.
async fn row_type(client: &Client, table: &str) -> Result<RowType, Failure> {
    let sql = "SELECT t.oid, t.typarray FROM pg_type t JOIN pg_namespace n ON n.oid = t.typnamespace
               WHERE n.nspname = current_schema() AND t.typname = $1";
    let row = client.query_typed_one(sql, &[(&table, Type::TEXT)]).await?;
    Ok(RowType::new(table, get(&row, 0)?, get(&row, 1)?))
}

/// 0: there is nothing of ours yet.
async fn schema_version(client: &Client, shown: &str) -> Result<i64, Failure> {
    let not_ours = || Failure::Final(StoreError::NotOurs(shown.to_owned()));
    let sql = "SELECT table_name::text, array_agg(column_name::text) FROM information_schema.columns
               WHERE table_schema = current_schema() AND table_name = ANY ($1) GROUP BY 1";
    let tables = client.query_typed(sql, &[(&TABLES.as_slice(), Type::TEXT_ARRAY)]).await?;
    let mut ledger: Option<Vec<String>> = None;
    for row in &tables {
        if get::<&str>(row, 0)? == "ledger" {
            ledger = Some(get(row, 1)?);
        }
    }
    let ours = |columns: &Vec<String>| {
        ["schema_version", "hash_key"].iter().all(|name| columns.iter().any(|c| c == name))
    };
    match ledger {
        None if tables.is_empty() => Ok(0),
        Some(columns) if ours(&columns) => {
            let rows = client.query_typed("SELECT schema_version FROM ledger", &[]).await?;
            Ok(get(rows.first().ok_or_else(not_ours)?, 0)?)
        }
        _ => Err(not_ours()),
    }
}
