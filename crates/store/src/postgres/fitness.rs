//! Whether a database keeps what it acknowledges (S42), and every text, and knows what is asked of it. Asked of every connection
//! when it is made: settings change beneath processes that run, and the next server may be another one.

use tokio_postgres::Client;

use super::columns::get;
use super::connect::Failure;
use crate::error::StoreError;

/// One statement, so that a connection costs one round trip more. What a server can change without ending its
/// connections is looked at again with every write; see `ledger_apply`.
const SQL: &str = "SELECT name, current_setting(name)
    FROM unnest(ARRAY['server_version_num', 'fsync', 'full_page_writes', 'synchronous_commit', 'server_encoding']) name
    WHERE CASE name
        WHEN 'server_version_num' THEN current_setting(name)::int < 140000 -- multiranges
        WHEN 'server_encoding' THEN current_setting(name) <> 'UTF8'
        ELSE current_setting(name) = 'off' END";

pub(super) async fn check(client: &Client) -> Result<(), Failure> {
    match client.query_typed(SQL, &[]).await?.first() {
        Some(row) => {
            let (name, value) = (get::<&str>(row, 0)?, get::<&str>(row, 1)?);
            Err(match name {
                "server_version_num" => StoreError::TooOld(value.to_owned()),
                "server_encoding" => StoreError::Encoding(value.to_owned()),
                _ => StoreError::UnsafeDurability(format!("{name} = {value}")),
            }
            .into())
        }
        None => Ok(()),
    }
}
