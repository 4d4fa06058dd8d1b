//! `twicesafe demo`: a small automation against a small shop, without and with Twicesafe.
//!
//! Everything is real but the shop: processes of their own, a ledger in a temporary folder, SIGKILL. What counts is what
//! the shop counted.

mod shop;
mod web;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::failure::Failure;
use crate::output::Table;
use shop::Shop;

/// The hidden first arguments that make this binary the automation, and what asks the shop.
pub(crate) const BUY: &str = "__demo-buy";
pub(crate) const ASK: &str = "__demo-ask";
pub(crate) use shop::{ask, buy};

/// How the automation is started.
#[derive(Clone, Copy, PartialEq, Eq)]
enum How {
    Plain,
    Guarded,
}

/// A folder that goes when the demo ends.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// One way of running things twice: its name, and what does it.
type Story = (&'static str, fn(&Demo, How, &str) -> std::io::Result<()>);

const STORIES: [Story; 4] = [
    ("run twice", run_twice),
    ("two at once", two_at_once),
    ("killed after the shop acted, then run again", killed_then_again),
    ("answered 500 after the shop acted, tried again over HTTP", answered_500),
];

struct Demo {
    shop: Shop,
    ledger: PathBuf,
}

pub(crate) fn run(out: &mut impl Write) -> Result<(), Failure> {
    let folder = Folder(std::env::temp_dir().join(format!("twicesafe-demo-{}", std::process::id())));
    std::fs::create_dir_all(&folder.0)?;
    let demo = Demo { shop: Shop::open()?, ledger: folder.0.join("ledger.db") };
    writeln!(
        out,
        "An automation orders socks from a shop. It should get one pair an order. Orders the shop counted:\n"
    )?;
    out.flush()?;
    let mut table = Table::new(&["", "without", "with Twicesafe"]);
    for (number, (name, story)) in STORIES.iter().enumerate() {
        let mut counted = Vec::new();
        for how in [How::Plain, How::Guarded] {
            let order = format!("{}-{number}", if how == How::Plain { "plain" } else { "guarded" });
            story(&demo, how, &order)?;
            counted.push(demo.shop.orders(&order).to_string());
        }
        table.row(std::iter::once((*name).to_owned()).chain(counted).collect());
    }
    table.print(out)?;
    writeln!(
        out,
        "\nWith Twicesafe the automation was started as\n  \
         twicesafe run --scope demo/socks --key ORDER --recovery lookup --lookup 'ask the shop' -- buy ORDER\n\
         The second start found the first one's answer in the ledger, waited for it, or asked the shop. The last line is a\n\
         workflow that changed one URL: http://127.0.0.1:4080/to/shop/orders, with twicesafe serve behind it."
    )?;
    Ok(())
}

fn run_twice(demo: &Demo, how: How, order: &str) -> std::io::Result<()> {
    demo.start(how, order, Duration::ZERO)?.wait()?;
    demo.start(how, order, Duration::ZERO)?.wait()?;
    Ok(())
}

fn two_at_once(demo: &Demo, how: How, order: &str) -> std::io::Result<()> {
    let slow = Duration::from_millis(300);
    let (mut one, mut other) = (demo.start(how, order, slow)?, demo.start(how, order, slow)?);
    one.wait()?;
    other.wait()?;
    Ok(())
}

fn killed_then_again(demo: &Demo, how: How, order: &str) -> std::io::Result<()> {
    let mut first = demo.start(how, order, Duration::from_secs(30))?;
    while demo.shop.orders(order) == 0 && first.try_wait()?.is_none() {
        std::thread::sleep(Duration::from_millis(10));
    }
    first.kill()?;
    first.wait()?;
    demo.start(how, order, Duration::ZERO)?.wait()?;
    Ok(())
}

fn answered_500(demo: &Demo, how: How, order: &str) -> std::io::Result<()> {
    match how {
        How::Plain => web::order(&demo.shop.address(), "/orders", order),
        How::Guarded => {
            let folder = demo.ledger.parent().unwrap_or(Path::new("."));
            let gateway = web::Gateway::start(folder, &demo.shop.address())?;
            web::order(&gateway.address, "/to/shop/orders", order)
        }
    }
}

impl Demo {
    /// Starts the automation. The shop answers after a while; it acts at once.
    fn start(&self, how: How, order: &str, answers_after: Duration) -> std::io::Result<Child> {
        let me = std::env::current_exe()?;
        let address = self.shop.address();
        let wait = answers_after.as_millis().to_string();
        let mut command = Command::new(&me);
        if how == How::Guarded {
            let lookup = format!("'{}' {ASK} {address} \"$TWICESAFE_KEY\"", shown(&me));
            command.arg("--ledger").arg(format!("sqlite:{}", self.ledger.display()));
            command.args(["run", "--scope", "demo/socks", "--key", order, "--fingerprint", "key"]);
            command.args(["--recovery", "lookup", "--lookup", &lookup]);
            // Short times, because this is a demo.
            command.args(["--lease", "1s", "--in-flight-max", "100ms", "--lag", "10ms", "--"]).arg(&me);
        }
        command.args([BUY, &address, order, &wait]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()
    }
}

fn shown(path: &Path) -> String {
    path.display().to_string().replace('\'', "'\\''")
}
