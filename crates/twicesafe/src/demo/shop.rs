//! The shop: takes orders over TCP, one line each, and counts them. It acts first and answers later, as shops do.

use std::collections::HashMap;
use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Longest line anybody says to the shop.
const LINE_BYTES_MAX: usize = 1000;
/// Exit status of an automation that certainly did nothing.
const NOT_SENT: i32 = 75;

pub(super) type Orders = Arc<Mutex<HashMap<String, usize>>>;

pub(super) struct Shop {
    address: SocketAddr,
    orders: Orders,
}

impl Shop {
    /// Opens on a free port of this machine; closes with the process.
    pub(super) fn open() -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let orders = Orders::default();
        let its_orders = orders.clone();
        std::thread::spawn(move || {
            for customer in listener.incoming().flatten() {
                let orders = its_orders.clone();
                // Customers that talk nonsense or go away are no reason to close.
                std::thread::spawn(move || serve(customer, &orders).is_ok());
            }
        });
        Ok(Self { address, orders })
    }

    pub(super) fn address(&self) -> String {
        self.address.to_string()
    }

    /// How many orders with that name it has taken.
    pub(super) fn orders(&self, name: &str) -> usize {
        count(&self.orders, name)
    }
}

pub(super) fn count(orders: &Orders, name: &str) -> usize {
    orders.lock().unwrap_or_else(PoisonError::into_inner).get(name).copied().unwrap_or(0)
}

/// Takes an order; says how many of that name there are now.
pub(super) fn take(orders: &Orders, name: &str) -> usize {
    let mut orders = orders.lock().unwrap_or_else(PoisonError::into_inner);
    let number = orders.entry(name.to_owned()).or_default();
    *number += 1;
    *number
}

fn serve(mut customer: TcpStream, orders: &Orders) -> io::Result<()> {
    let line = first_line(&mut customer)?;
    if line.contains(" HTTP/1.") {
        return super::web::serve(customer, &line, orders);
    }
    match line.split_whitespace().collect::<Vec<_>>().as_slice() {
        ["order", name, answers_after] => {
            let number = take(orders, name);
            std::thread::sleep(Duration::from_millis(answers_after.parse().unwrap_or(0)));
            writeln!(customer, "thank you, {name}/{number}")
        }
        ["ask", name] => writeln!(customer, "{}", count(orders, name)),
        _ => writeln!(customer, "what?"),
    }
}

/// The first line, and not a byte more.
fn first_line(customer: &mut TcpStream) -> io::Result<String> {
    let mut line = Vec::new();
    let mut byte = [0];
    while line.len() < LINE_BYTES_MAX && customer.read(&mut byte)? > 0 && byte != *b"\n" {
        line.push(byte[0]);
    }
    Ok(String::from_utf8_lossy(&line).into_owned())
}

/// One line to the shop, one line back. `None`: the shop could not be reached, and nothing was sent.
fn say(address: &str, line: &str) -> io::Result<Option<String>> {
    let Ok(mut shop) = TcpStream::connect(address) else { return Ok(None) };
    writeln!(shop, "{line}")?;
    let mut reply = String::new();
    BufReader::new(shop).read_line(&mut reply)?;
    Ok(Some(reply.trim().to_owned()))
}

/// The automation: orders socks.
pub(crate) fn buy(words: &mut dyn Iterator<Item = OsString>) -> i32 {
    let words: Vec<String> = words.map(|word| word.to_string_lossy().into_owned()).collect();
    let [address, order, answers_after] = words.as_slice() else { return 2 };
    match say(address, &format!("order {order} {answers_after}")) {
        Ok(Some(reply)) if reply.starts_with("thank you") => {
            i32::from(writeln!(io::stdout(), "{reply}").is_err())
        }
        Ok(None) => NOT_SENT,
        _ => 1,
    }
}

/// Asks the shop whether an order arrived: 0 and its name, or 1; anything else is no answer.
pub(crate) fn ask(words: &mut dyn Iterator<Item = OsString>) -> i32 {
    let words: Vec<String> = words.map(|word| word.to_string_lossy().into_owned()).collect();
    let [address, order] = words.as_slice() else { return 2 };
    match say(address, &format!("ask {order}")) {
        Ok(Some(reply)) => match reply.parse::<usize>() {
            Ok(0) => 1,
            Ok(_) => i32::from(writeln!(io::stdout(), "{order}/1").is_err()),
            Err(_) => 3,
        },
        _ => 3,
    }
}
