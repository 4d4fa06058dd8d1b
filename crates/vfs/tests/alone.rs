//! SQLite with what stands before its cache of pages, which has to be put there while there is one thread: so this is a program of its
//! own, without a harness.

use rusqlite::Connection;

fn main() {
    let is_known_to_be_alone = std::path::Path::new("/proc/self/task").exists();
    assert_eq!(twicesafe_vfs::spare_walks(), is_known_to_be_alone, "nobody has used SQLite yet");
    assert!(!twicesafe_vfs::spare_walks(), "once is enough");
    let folder = std::env::temp_dir().join(format!("twicesafe-vfs-alone-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let connection = Connection::open(folder.join("database")).expect("a database");
    // Pages are split, swapped, freed, taken back and cut off; with a cache so small they also have to make room.
    for cache in [10, 2_000] {
        let set_up = format!(
            "PRAGMA journal_mode = WAL; PRAGMA cache_size = {cache}; PRAGMA auto_vacuum = INCREMENTAL;
             DROP TABLE IF EXISTS t; VACUUM; CREATE TABLE t (hash BLOB PRIMARY KEY, number INTEGER, x BLOB) WITHOUT ROWID;
             CREATE UNIQUE INDEX t_by_number ON t (number)"
        );
        connection.execute_batch(&set_up).expect("it can be written");
        for round in 0..40 {
            let ends = if round % 4 == 3 { "ROLLBACK" } else { "COMMIT" };
            let changes = format!(
                "BEGIN;
                 INSERT INTO t WITH RECURSIVE s (i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM s WHERE i < 200)
                     SELECT randomblob(16), i + {round} * 1000, zeroblob(i * 3) FROM s;
                 DELETE FROM t WHERE number % 7 = {round} % 7;
                 PRAGMA incremental_vacuum; {ends}"
            );
            connection.execute_batch(&changes).expect("it can be written");
        }
        let (rows, other): (i64, i64) = connection
            .query_row("SELECT (SELECT count(*) FROM t NOT INDEXED), (SELECT count(*) FROM t INDEXED BY t_by_number)", [], |row| {
                Ok((row.get(0)?, row.get(1)?))
            })
            .expect("an answer");
        assert!(rows > 500 && rows == other, "{rows}, {other}");
        for connection in [&connection, &Connection::open(folder.join("database")).expect("it is there")] {
            let sound: String =
                connection.query_row("PRAGMA integrity_check", [], |row| row.get(0)).expect("an answer");
            assert_eq!(sound, "ok");
        }
    }
    drop(connection);
    std::fs::remove_dir_all(&folder).expect("it can go");
}
