//! Numbers as they come in JSON.

use serde::de::{Deserializer, Error, Visitor};

/// A whole number. JSON knows only numbers: `2` and `2.0` are the same.
pub(super) fn whole<'de, D: Deserializer<'de>, T: TryFrom<i128>>(deserializer: D) -> Result<T, D::Error> {
    struct Whole;
    impl Visitor<'_> for Whole {
        type Value = i128;

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("a whole number in range")
        }

        fn visit_u64<E: Error>(self, number: u64) -> Result<i128, E> {
            Ok(number.into())
        }

        fn visit_i64<E: Error>(self, number: i64) -> Result<i128, E> {
            Ok(number.into())
        }

        fn visit_f64<E: Error>(self, number: f64) -> Result<i128, E> {
            // Beyond this, neighbours cannot be told apart.
            const EXACT_MAX: f64 = 9_007_199_254_740_992.0;
            match number.fract() == 0.0 && number.abs() <= EXACT_MAX {
                true => Ok(number as i128),
                false => Err(E::custom("expected a whole number in range")),
            }
        }
    }
    let number = deserializer.deserialize_any(Whole)?;
    T::try_from(number).map_err(|_| D::Error::custom("expected a whole number in range"))
}

pub(super) fn whole_or_none<'de, D: Deserializer<'de>, T: TryFrom<i128>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    struct OrNone<T>(std::marker::PhantomData<T>);
    impl<'de, T: TryFrom<i128>> Visitor<'de> for OrNone<T> {
        type Value = Option<T>;

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("a whole number in range, or nothing")
        }

        fn visit_none<E: Error>(self) -> Result<Option<T>, E> {
            Ok(None)
        }

        fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Option<T>, D::Error> {
            whole(deserializer).map(Some)
        }
    }
    deserializer.deserialize_option(OrNone(std::marker::PhantomData))
}
