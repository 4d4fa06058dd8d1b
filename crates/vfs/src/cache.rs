//! SQLite's cache of pages, asked to let go only of what it has.
//!
//! To swap two pages SQLite gives one of them, for a moment, the number of a page a gigabyte into the file. Its cache takes note that
//! such a number was there, and at the end of the transaction, when what lies behind the end of the file has to go, it walks through
//! every page it holds to find none: in a ledger of less than a gigabyte a tenth of the time of the writer. So this stands before that
//! cache, hands everything on to it, and keeps the highest number that is really there.
#![expect(unsafe_code, reason = "SQLite hands over pointers, and takes them")]

use std::ffi::{c_int, c_uint};
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::OnceLock;

use rusqlite::ffi::{
    self, SQLITE_CONFIG_GETPCACHE2, SQLITE_CONFIG_PCACHE2, SQLITE_OK, sqlite3_pcache,
    sqlite3_pcache_methods2, sqlite3_pcache_page,
};

use crate::highest::Highest;

/// What can be done with SQLite's own. None of it is missing.
struct Own {
    create: unsafe extern "C" fn(c_int, c_int, c_int) -> *mut sqlite3_pcache,
    resize: unsafe extern "C" fn(*mut sqlite3_pcache, c_int),
    count: unsafe extern "C" fn(*mut sqlite3_pcache) -> c_int,
    fetch: unsafe extern "C" fn(*mut sqlite3_pcache, c_uint, c_int) -> *mut sqlite3_pcache_page,
    unpin: unsafe extern "C" fn(*mut sqlite3_pcache, *mut sqlite3_pcache_page, c_int),
    rekey: unsafe extern "C" fn(*mut sqlite3_pcache, *mut sqlite3_pcache_page, c_uint, c_uint),
    truncate: unsafe extern "C" fn(*mut sqlite3_pcache, c_uint),
    destroy: unsafe extern "C" fn(*mut sqlite3_pcache),
    shrink: unsafe extern "C" fn(*mut sqlite3_pcache),
}

static OWN: OnceLock<Own> = OnceLock::new();

/// The cache of a connection.
struct Cache {
    own: *mut sqlite3_pcache,
    highest: Highest,
}

/// Stands before SQLite's own cache, in all of this process. Says whether it does: SQLite cannot be told once it is in use.
pub(crate) fn stand_before() -> bool {
    if !is_alone() {
        return false;
    }
    let mut methods = MaybeUninit::<sqlite3_pcache_methods2>::zeroed();
    // SAFETY: no other thread is there that could be asking SQLite something, and it writes a table to where it is told to.
    let asked = unsafe { ffi::sqlite3_config(SQLITE_CONFIG_GETPCACHE2, methods.as_mut_ptr()) };
    if asked != SQLITE_OK {
        return false;
    }
    // SAFETY: it was written, and nothing in it is invalid as zeros either.
    let methods = unsafe { methods.assume_init() };
    let Some(own) = Own::of(&methods) else { return false };
    if OWN.set(own).is_err() {
        return false;
    }
    let ours = sqlite3_pcache_methods2 {
        xCreate: Some(create),
        xCachesize: Some(resize),
        xPagecount: Some(count),
        xFetch: Some(fetch),
        xUnpin: Some(unpin),
        xRekey: Some(rekey),
        xTruncate: Some(truncate),
        xDestroy: Some(destroy),
        xShrink: Some(shrink),
        // Its beginning, its end and what it is given then stay its own.
        ..methods
    };
    // SAFETY: as above; SQLite copies the table.
    unsafe { ffi::sqlite3_config(SQLITE_CONFIG_PCACHE2, ptr::from_ref(&ours)) == SQLITE_OK }
}

/// Whether this is the only thread of the process.
fn is_alone() -> bool {
    std::fs::read_dir("/proc/self/task").is_ok_and(|threads| threads.count() == 1)
}

impl Own {
    fn of(methods: &sqlite3_pcache_methods2) -> Option<Self> {
        Some(Self {
            create: methods.xCreate?,
            resize: methods.xCachesize?,
            count: methods.xPagecount?,
            fetch: methods.xFetch?,
            unpin: methods.xUnpin?,
            rekey: methods.xRekey?,
            truncate: methods.xTruncate?,
            destroy: methods.xDestroy?,
            shrink: methods.xShrink?,
        })
    }
}

/// SQLite's own cache behind one of ours, and ours.
macro_rules! behind {
    ($cache:ident, $own:ident, $ours:ident => $what:expr) => {{
        let $own = OWN.get().expect("caches are made after it was set");
        // SAFETY: `create` made it, `destroy` has not freed it, and SQLite uses a cache from one thread at a time.
        let $ours = unsafe { &mut *$cache.cast::<Cache>() };
        // SAFETY: SQLite gave what its own cache asks for.
        unsafe { $what }
    }};
}

unsafe extern "C" fn create(page: c_int, extra: c_int, purgeable: c_int) -> *mut sqlite3_pcache {
    let Some(own) = OWN.get() else { return ptr::null_mut() };
    // SAFETY: SQLite gave what it asks for.
    let own = unsafe { (own.create)(page, extra, purgeable) };
    if own.is_null() {
        return own;
    }
    Box::into_raw(Box::new(Cache { own, highest: Highest::default() })).cast()
}

unsafe extern "C" fn resize(cache: *mut sqlite3_pcache, pages: c_int) {
    behind!(cache, own, ours => (own.resize)(ours.own, pages));
}

unsafe extern "C" fn count(cache: *mut sqlite3_pcache) -> c_int {
    behind!(cache, own, ours => (own.count)(ours.own))
}

unsafe extern "C" fn fetch(
    cache: *mut sqlite3_pcache,
    number: c_uint,
    creates: c_int,
) -> *mut sqlite3_pcache_page {
    behind!(cache, own, ours => {
        if creates != 0 {
            // Also where it then has no room for it.
            ours.highest.is_there(number);
        }
        (own.fetch)(ours.own, number, creates)
    })
}

unsafe extern "C" fn unpin(cache: *mut sqlite3_pcache, page: *mut sqlite3_pcache_page, discards: c_int) {
    behind!(cache, own, ours => (own.unpin)(ours.own, page, discards));
}

unsafe extern "C" fn rekey(
    cache: *mut sqlite3_pcache,
    page: *mut sqlite3_pcache_page,
    before: c_uint,
    now: c_uint,
) {
    behind!(cache, own, ours => {
        ours.highest.moved(before, now);
        (own.rekey)(ours.own, page, before, now)
    });
}

unsafe extern "C" fn truncate(cache: *mut sqlite3_pcache, from: c_uint) {
    behind!(cache, own, ours => {
        if ours.highest.cut(from) {
            (own.truncate)(ours.own, from)
        }
    });
}

unsafe extern "C" fn destroy(cache: *mut sqlite3_pcache) {
    behind!(cache, own, ours => {
        (own.destroy)(ours.own);
        drop(Box::from_raw(ptr::from_mut(ours)))
    });
}

unsafe extern "C" fn shrink(cache: *mut sqlite3_pcache) {
    behind!(cache, own, ours => (own.shrink)(ours.own));
}
