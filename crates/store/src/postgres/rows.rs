//! Rows on their way to the database and back: whole rows of our tables as arrays of composites, so that a batch is a dozen
//! parameters however many columns there are, and what was there already comes with the answer.

use bytes::{BufMut, BytesMut};
use tokio_postgres::types::{IsNull, Kind, ToSql, Type, to_sql_checked};
use twicesafe_core::Timestamp;

use crate::error::StoreError;

/// One value of a row.
#[derive(Clone, Copy, Debug)]
pub(super) enum Field<'a> {
    Text(Option<&'a str>),
    Bytes(Option<&'a [u8]>),
    Int(Option<i64>),
    Bool(Option<bool>),
    Ints(&'a [i64]),
    Texts(&'a [Option<&'a str>]),
    Rows(&'a Rows),
}

impl<'a> Field<'a> {
    pub(super) fn text(text: Option<&'a str>) -> Self {
        Self::Text(text)
    }

    pub(super) fn bytes<const N: usize>(bytes: Option<&'a [u8; N]>) -> Self {
        Self::Bytes(bytes.map(|bytes| &bytes[..]))
    }

    pub(super) fn int(number: Option<impl Into<i64>>) -> Self {
        Self::Int(number.map(Into::into))
    }

    pub(super) fn at(at: Option<Timestamp>) -> Self {
        Self::Int(at.map(Timestamp::as_millis))
    }

    /// Whether it is a list without anything in it.
    pub(super) fn is_empty(&self) -> bool {
        match self {
            Self::Ints(numbers) => numbers.is_empty(),
            Self::Texts(texts) => texts.is_empty(),
            Self::Rows(rows) => rows.is_empty(),
            Self::Text(_) | Self::Bytes(_) | Self::Int(_) | Self::Bool(_) => false,
        }
    }

    fn type_number(&self) -> u32 {
        match self {
            Self::Text(_) => Type::TEXT.oid(),
            Self::Bytes(_) => Type::BYTEA.oid(),
            Self::Int(_) => Type::INT8.oid(),
            Self::Bool(_) => Type::BOOL.oid(),
            Self::Ints(_) => Type::INT8_ARRAY.oid(),
            Self::Texts(_) => Type::TEXT_ARRAY.oid(),
            Self::Rows(rows) => rows.of.array.oid(),
        }
    }

    fn write(&self, out: &mut BytesMut) {
        out.put_u32(self.type_number());
        match self {
            Self::Int(Some(number)) => {
                out.put_i32(8);
                out.put_i64(*number);
            }
            Self::Bool(Some(yes)) => {
                out.put_i32(1);
                out.put_u8(u8::from(*yes));
            }
            Self::Text(Some(text)) => put_bytes(text.as_bytes(), out),
            Self::Bytes(Some(bytes)) => put_bytes(bytes, out),
            Self::Ints(numbers) => put_array(Type::INT8.oid(), numbers, out, |number, out| {
                out.put_i32(8);
                out.put_i64(*number);
            }),
            Self::Texts(texts) => put_array(Type::TEXT.oid(), texts, out, |text, out| match text {
                Some(text) => put_bytes(text.as_bytes(), out),
                None => out.put_i32(-1),
            }),
            Self::Rows(rows) => {
                out.put_i32(rows.length() as i32);
                rows.write(out);
            }
            Self::Int(None) | Self::Bool(None) | Self::Text(None) | Self::Bytes(None) => out.put_i32(-1),
        }
    }
}

fn put_bytes(bytes: &[u8], out: &mut BytesMut) {
    out.put_i32(bytes.len() as i32);
    out.put_slice(bytes);
}

/// An array, with its length before it.
fn put_array<T>(of: u32, values: &[T], out: &mut BytesMut, put: impl Fn(&T, &mut BytesMut)) {
    let start = out.len();
    out.put_i32(0);
    put_array_head(of, values.len() as i32, out);
    values.iter().for_each(|value| put(value, out));
    let length = (out.len() - start - 4) as i32;
    out[start..start + 4].copy_from_slice(&length.to_be_bytes());
}

fn put_array_head(of: u32, count: i32, out: &mut BytesMut) {
    out.put_i32(i32::from(count > 0)); // dimensions
    out.put_i32(1); // there may be nulls
    out.put_u32(of);
    if count > 0 {
        out.put_i32(count);
        out.put_i32(1); // positions start here
    }
}

/// The type of the rows of a table, in this database.
#[derive(Clone, Debug)]
pub(super) struct RowType {
    oid: u32,
    array: Type,
}

impl RowType {
    pub(super) fn new(table: &str, oid: u32, array_oid: u32) -> Self {
        // Nothing looks at more than the number.
        Self { oid, array: Type::new(table.to_owned(), array_oid, Kind::Simple, String::new()) }
    }
}

/// Rows of one table.
#[derive(Debug)]
pub(super) struct Rows {
    of: RowType,
    count: i32,
    bytes: BytesMut,
}

impl Rows {
    pub(super) fn of(row_type: &RowType) -> Self {
        Self { of: row_type.clone(), count: 0, bytes: BytesMut::new() }
    }

    pub(super) fn push<'a>(
        &mut self,
        fields: impl IntoIterator<Item = Field<'a>, IntoIter: ExactSizeIterator>,
    ) {
        let fields = fields.into_iter();
        let start = self.bytes.len();
        self.bytes.put_i32(0);
        self.bytes.put_i32(fields.len() as i32);
        fields.for_each(|field| field.write(&mut self.bytes));
        let length = (self.bytes.len() - start - 4) as i32;
        self.bytes[start..start + 4].copy_from_slice(&length.to_be_bytes());
        self.count += 1;
    }

    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub(super) fn parameter(&self) -> (&(dyn ToSql + Sync), Type) {
        (self, self.of.array.clone())
    }

    /// How long they are once they are written.
    fn length(&self) -> usize {
        if self.is_empty() { 12 } else { 20 + self.bytes.len() }
    }

    fn write(&self, out: &mut BytesMut) {
        put_array_head(self.of.oid, self.count, out);
        out.put_slice(&self.bytes);
    }
}

impl ToSql for Rows {
    fn to_sql(
        &self,
        _: &Type,
        out: &mut BytesMut,
    ) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        self.write(out);
        Ok(IsNull::No)
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    to_sql_checked!();
}

/// One of several rows that came as one value: the types and values of its columns.
pub(super) struct Inner<'a>(Vec<(u32, Option<&'a [u8]>)>);

impl<'a> Inner<'a> {
    /// `None`: there is no such column, or its type is nothing we use.
    pub(super) fn field(&self, index: usize) -> Option<(Type, Option<&'a [u8]>)> {
        let (of, value) = *self.0.get(index)?;
        Some((Type::from_oid(of)?, value))
    }
}

/// Rows that came as one value, by `array_send`: a driver that met an array of a type it does not know would ask for it, with
/// statements that are kept on the connection.
pub(super) fn inner_rows(raw: &[u8]) -> Result<Vec<Inner<'_>>, StoreError> {
    let mut raw = Raw(raw);
    let mut rows = || {
        let dimensions = raw.number()?;
        let (_has_nulls, _of) = (raw.number()?, raw.number()?);
        if dimensions == 0 {
            return Some(Vec::new());
        }
        let (count, _start) = (raw.number()?, raw.number()?);
        (0..count).map(|_| Raw(raw.value()??).row()).collect()
    };
    rows().ok_or_else(|| StoreError::Damaged("rows that end early".into()))
}

/// What is left to be read of a value. `None`: it ends early.
struct Raw<'a>(&'a [u8]);

impl<'a> Raw<'a> {
    fn number(&mut self) -> Option<u32> {
        let (number, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u32::from_be_bytes(*number))
    }

    /// A length and as many bytes; a length below zero stands for nothing.
    fn value(&mut self) -> Option<Option<&'a [u8]>> {
        let Ok(length) = usize::try_from(self.number()?.cast_signed()) else { return Some(None) };
        let (value, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(Some(value))
    }

    fn row(mut self) -> Option<Inner<'a>> {
        let columns = self.number()?;
        (0..columns).map(|_| Some((self.number()?, self.value()?))).collect::<Option<_>>().map(Inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_written_as_the_server_reads_them() {
        let mut rows = Rows::of(&RowType::new("t", 7, 8));
        let mut out = BytesMut::new();
        rows.to_sql(&Type::UNKNOWN, &mut out).expect("rows can be written");
        assert_eq!(out[..], [0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 7]);
        assert_eq!(rows.length(), out.len());
        rows.push([Field::Text(Some("a")), Field::Int(None), Field::Bool(Some(true))]);
        out.clear();
        rows.to_sql(&Type::UNKNOWN, &mut out).expect("rows can be written");
        assert_eq!(rows.length(), out.len());
        let header = [0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 7, 0, 0, 0, 1, 0, 0, 0, 1];
        let row = [
            0, 0, 0, 30, 0, 0, 0, 3, // its length, and three fields
            0, 0, 0, 25, 0, 0, 0, 1, b'a', // text
            0, 0, 0, 20, 255, 255, 255, 255, // no number
            0, 0, 0, 16, 0, 0, 0, 1, 1, // yes
        ];
        assert_eq!(out[..], [&header[..], &row[..]].concat());
    }

    #[test]
    fn rows_are_read_as_they_are_written() {
        let mut rows = Rows::of(&RowType::new("t", 7, 8));
        let read = |rows: &Rows| {
            let mut out = BytesMut::new();
            rows.to_sql(&Type::UNKNOWN, &mut out).expect("rows can be written");
            out.freeze()
        };
        let none = read(&rows);
        assert!(inner_rows(&none).is_ok_and(|rows| rows.is_empty()));
        rows.push([Field::Text(Some("a")), Field::Int(None)]);
        rows.push([Field::Text(Some("")), Field::Int(Some(5))]);
        let two = read(&rows);
        let back = inner_rows(&two).expect("rows can be read");
        let columns: Vec<_> = back.iter().map(|row| (row.field(0), row.field(1), row.field(2))).collect();
        let (first, second) = ((Type::TEXT, Some(&b"a"[..])), (Type::TEXT, Some(&b""[..])));
        let five = 5i64.to_be_bytes();
        assert_eq!(
            columns,
            [
                (Some(first), Some((Type::INT8, None)), None),
                (Some(second), Some((Type::INT8, Some(&five[..]))), None)
            ]
        );
        for end in 0..two.len() {
            assert!(inner_rows(&two[..end]).is_err(), "cut at {end}");
        }
    }
}
