//! Files that only their owner may read: requests, answers and names of customers are in them (S41).

use std::fs::{File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

/// What a file of a ledger allows: reading and writing by its owner.
const OWNER: u32 = 0o600;
/// What the group is left where it may write: then several users share the ledger on purpose.
const GROUP: u32 = 0o060;
const GROUP_WRITES: u32 = 0o020;
const ALL: u32 = 0o777;

/// Makes a new file that only its owner may read.
pub(crate) fn new_file(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(OWNER).open(path)
}

/// Makes an empty file that only its owner may read, unless it is there. Does not open it where the system can do without: closing it
/// would let go of the locks that SQLite has on it in this process.
pub(crate) fn make_empty(path: &Path) {
    #[cfg(target_os = "linux")]
    {
        use rustix::fs::{CWD, FileType, Mode, mknodat};
        // What is wrong SQLite finds, too, and says.
        let _ = mknodat(CWD, path, FileType::RegularFile, Mode::from_raw_mode(OWNER), 0);
    }
    #[cfg(not(target_os = "linux"))]
    if let Ok(file) = new_file(path) {
        std::mem::forget(file);
    }
}

/// Takes a file away from everybody but its owner. A group that may write keeps what it has. Returns what somebody should know: that
/// others could read it, or can still.
pub(crate) fn mend(path: &Path) -> Option<String> {
    let found = path.metadata().ok()?;
    let mode = found.permissions().mode() & ALL;
    let is_shared = mode & GROUP_WRITES != 0;
    let allowed = if is_shared { OWNER | GROUP } else { OWNER };
    if mode & !allowed & 0o077 == 0 {
        return None;
    }
    let path_shown = path.display();
    // Some file systems take any mode and change nothing.
    let changed = std::fs::set_permissions(path, Permissions::from_mode(mode & allowed))
        .and_then(|()| Ok(path.metadata()?.permissions().mode() & ALL));
    Some(match changed {
        Ok(now) if now & !allowed & 0o077 == 0 => {
            format!("others could read {path_shown} (mode {mode:o}); its mode is {now:o} now")
        }
        Ok(now) => format!(
            "failed to make {path_shown} private: the file system keeps its mode at {now:o}. Put the ledger into a folder that only \
             its owner may enter."
        ),
        Err(error) => {
            format!(
                "failed to make {path_shown} private (mode {mode:o}): {error}. As its owner, run chmod go-rwx."
            )
        }
    })
}

/// Makes sure that a new name in a folder is on disk. Where that cannot be, the file is as safe as the system makes it.
pub(crate) fn sync_folder(path: &Path) {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let _ = File::open(folder).and_then(|folder| folder.sync_all());
}
