//! Where the file of a ledger is: SQLite finds the log and its index by the file's name, so that a file with two names would have
//! two logs, and those who use one name would not see what those who use the other have claimed (S42).

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use crate::error::StoreError;

/// As many as the system itself follows.
const LINKS_MAX: usize = 40;

/// The one path by which everybody opens the ledger, whatever it was called: made, if need be, by who opens it.
pub(super) fn of_ledger(path: &Path) -> Result<PathBuf, StoreError> {
    let file = at_the_end_of_links(path.to_owned())?;
    let folder = folder_of(&file);
    let Ok(folder) = folder.canonicalize() else {
        return Err(StoreError::ReadOnly(format!("the folder {} does not exist", folder.display())));
    };
    // A folder, a device or a pipe.
    let (Some(name), false) = (file.file_name(), file.exists() && !file.is_file()) else {
        return Err(StoreError::NotOurs(path.display().to_string()));
    };
    let file = folder.join(name);
    check_file_system(&file, &folder)?;
    check_names(&file, &folder)?;
    Ok(file)
}

/// One of the files SQLite has open, open until the process ends: whoever closes it lets go of every lock that SQLite holds on it in
/// this process (<https://sqlite.org/howtocorrupt.html>, 2.2).
pub(super) fn kept_open(path: &Path) -> std::io::Result<&'static File> {
    static OPEN: Mutex<BTreeMap<(u64, u64), &'static File>> = Mutex::new(BTreeMap::new());
    let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    let which = std::fs::metadata(path)?;
    match open.entry((which.dev(), which.ino())) {
        Entry::Occupied(there) => Ok(there.get()),
        Entry::Vacant(new) => Ok(new.insert(Box::leak(Box::new(File::open(path)?)))),
    }
}

/// What a symbolic link leads to may not be there yet, and then the system cannot say where it is.
fn at_the_end_of_links(mut path: PathBuf) -> Result<PathBuf, StoreError> {
    for _ in 0..LINKS_MAX {
        let Ok(next) = path.read_link() else { return Ok(path) };
        path = folder_of(&path).join(next);
    }
    Err(StoreError::NotOurs(path.display().to_string()))
}

fn folder_of(file: &Path) -> &Path {
    file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// SQLite's locks and shared memory do not work over a network (S42).
fn check_file_system(file: &Path, folder: &Path) -> Result<(), StoreError> {
    let Ok(mounts) = std::fs::read_to_string("/proc/self/mounts") else { return Ok(()) };
    match network_file_system(&mounts, folder) {
        Some(kind) => {
            Err(StoreError::NetworkFileSystem { path: file.display().to_string(), kind: kind.to_owned() })
        }
        None => Ok(()),
    }
}

fn check_names(file: &Path, folder: &Path) -> Result<(), StoreError> {
    // One that is not there yet has no second name.
    let Ok(found) = file.metadata() else { return Ok(()) };
    let second = |how| Err(StoreError::SecondName { path: file.display().to_string(), how });
    if found.nlink() > 1 {
        return second("there are hard links to it");
    }
    let is_mounted = match std::fs::read_to_string("/proc/self/mountinfo") {
        Ok(mounts) => is_mount_point(&mounts, file),
        // Only where mounts cannot be read: a bound file can have its folder's device, and in an overlay a plain one can have
        // another.
        Err(_) => folder.metadata().is_ok_and(|folder| folder.dev() != found.dev()),
    };
    if is_mounted { second("it is mounted by itself") } else { Ok(()) }
}

const NETWORK_FILE_SYSTEMS: [&str; 14] = [
    "nfs",
    "nfs4",
    "cifs",
    "smb3",
    "smbfs",
    "9p",
    "afs",
    "ceph",
    "glusterfs",
    "lustre",
    "ncpfs",
    "fuse.sshfs",
    "fuse.glusterfs",
    "fuse.ceph",
];

fn network_file_system<'a>(mounts: &'a str, folder: &Path) -> Option<&'a str> {
    let mount = |line: &'a str| {
        let mut words = line.split(' ');
        let point = unescaped(words.nth(1)?);
        Some((point, words.next()?))
    };
    let (_, kind) = mounts
        .lines()
        .filter_map(mount)
        .filter(|(point, _)| folder.starts_with(point))
        // The last of equally long ones is mounted over the others.
        .max_by_key(|(point, _)| point.len())?;
    NETWORK_FILE_SYSTEMS.contains(&kind).then_some(kind)
}

/// Whether something is mounted exactly there, by the lines of `mountinfo`.
fn is_mount_point(mounts: &str, file: &Path) -> bool {
    mounts.lines().filter_map(|line| line.split(' ').nth(4)).any(|point| Path::new(&unescaped(point)) == file)
}

/// A path as the system lists it, without its escapes.
fn unescaped(path: &str) -> String {
    let escapes = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")];
    escapes.iter().fold(path.to_owned(), |path, (escape, character)| path.replace(escape, character))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s42_network_file_systems_are_told_from_local_ones() {
        let mounts = "/dev/vda / ext4 rw 0 0\nserver:/x /mnt/my\\040share nfs4 rw 0 0\ntmpfs /mnt/my\\040share/local tmpfs rw 0 0\n";
        let kind = |folder: &str| network_file_system(mounts, Path::new(folder));
        assert_eq!(kind("/home"), None);
        assert_eq!(kind("/mnt/my share/a"), Some("nfs4"));
        assert_eq!(kind("/mnt/my share/local/a"), None);
        assert_eq!(kind("/mnt/my sharex"), None);
    }

    #[test]
    fn s42_a_file_that_is_mounted_is_told_from_its_folder() {
        let mounts = "22 1 254:1 / / rw - ext4 /dev/vda rw\n\
            90 22 254:1 /host /data rw - ext4 /dev/vda rw\n\
            91 22 254:1 /host/my\\040ledger.db /x/my\\040ledger.db rw - ext4 /dev/vda rw\n";
        let is_mounted = |file: &str| is_mount_point(mounts, Path::new(file));
        assert!(is_mounted("/x/my ledger.db"));
        assert!(!is_mounted("/data/ledger.db"));
        assert!(!is_mounted("/x/ledger.db"));
        assert!(!is_mounted("/host/my ledger.db"));
    }

    #[test]
    fn s42_links_lead_to_one_path_before_the_file_is_there_and_after() {
        let folder = std::env::temp_dir().join(format!("twicesafe-place-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("real")).expect("a folder");
        let folder = folder.canonicalize().expect("it is there");
        std::os::unix::fs::symlink("real/ledger.db", folder.join("near.db")).expect("a link");
        std::os::unix::fs::symlink(folder.join("near.db"), folder.join("real/far.db")).expect("a link");
        std::os::unix::fs::symlink(folder.join("real"), folder.join("folder")).expect("a link");
        let real = folder.join("real/ledger.db");
        for _ in 0..2 {
            for path in ["near.db", "real/far.db", "folder/ledger.db", "real/../real/ledger.db"] {
                assert_eq!(of_ledger(&folder.join(path)).expect("it can be"), real, "{path}");
            }
            std::fs::write(&real, "").expect("it is made");
        }
        std::os::unix::fs::symlink("round.db", folder.join("round.db")).expect("a link");
        assert!(matches!(of_ledger(&folder.join("round.db")), Err(StoreError::NotOurs(_))));
        std::fs::remove_dir_all(&folder).expect("it can go");
    }
}
