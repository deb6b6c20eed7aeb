//! JSON as Go's encoding/json reads it, because that is what every runtime
//! was tested against: keys match whatever their case, of several equal keys
//! the last wins, `null` is absence, and integers may arrive as floats
//! (`1e+09`), because they passed through a map of interfaces.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::Number;

/// One JSON value, keys in the order and case in which they came.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Json {
    /// `null`.
    #[default]
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// Any number.
    Number(Number),
    /// A string.
    Text(String),
    /// An array.
    List(Vec<Json>),
    /// An object.
    Object(Vec<(String, Json)>),
}

impl Json {
    /// Reads exactly one value; nesting is bounded (128, by serde_json).
    ///
    /// # Errors
    /// What is wrong with the text, and where.
    pub fn parse(bytes: &[u8]) -> Result<Json, serde_json::Error> {
        serde_json::from_slice(bytes)
    }

    /// The value of `key`, whatever its case; None when it is absent, null,
    /// or this is no object.
    pub fn get(&self, key: &str) -> Option<&Json> {
        let Json::Object(members) = self else {
            return None;
        };
        let last = members.iter().rev();
        last.filter(|(_, value)| *value != Json::Null)
            .find(|(name, _)| name.eq_ignore_ascii_case(key))
            .map(|(_, value)| value)
    }

    /// Whether an object has `key` at all, be its value null.
    pub fn has(&self, key: &str) -> bool {
        matches!(self, Json::Object(members)
            if members.iter().any(|(name, _)| name.eq_ignore_ascii_case(key)))
    }

    /// The string, if it is one.
    pub fn text(&self) -> Option<&str> {
        match self {
            Json::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The elements, if it is an array; none if it is null.
    pub fn list(&self) -> Option<&[Json]> {
        match self {
            Json::List(items) => Some(items),
            Json::Null => Some(&[]),
            _ => None,
        }
    }

    /// The members, if it is an object; none if it is null.
    pub fn members(&self) -> Option<&[(String, Json)]> {
        match self {
            Json::Object(members) => Some(members),
            Json::Null => Some(&[]),
            _ => None,
        }
    }

    /// The whole number, if it is one and not negative. A float counts when it
    /// is whole and a double holds it exactly.
    pub fn integer(&self) -> Option<u64> {
        let Json::Number(number) = self else {
            return None;
        };
        number.as_u64().or_else(|| {
            let float = number.as_f64()?;
            let exact = float.fract() == 0.0 && (0.0..=EXACT).contains(&float);
            exact.then_some(float as u64)
        })
    }

    /// Whether it asks for anything: not null, empty, zero or false all through.
    pub fn says_something(&self) -> bool {
        match self {
            Json::Null => false,
            Json::Bool(set) => *set,
            Json::Number(number) => number.as_f64() != Some(0.0),
            Json::Text(text) => !text.is_empty(),
            Json::List(items) => items.iter().any(Json::says_something),
            Json::Object(members) => members.iter().any(|(_, value)| value.says_something()),
        }
    }
}

/// The JSON text.
impl fmt::Display for Json {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(&serde_json::to_string(self).map_err(|_| fmt::Error)?)
    }
}

impl Serialize for Json {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Json::Null => to.serialize_unit(),
            Json::Bool(value) => to.serialize_bool(*value),
            Json::Number(value) => value.serialize(to),
            Json::Text(value) => to.serialize_str(value),
            Json::List(items) => to.collect_seq(items),
            Json::Object(members) => {
                let mut map = to.serialize_map(Some(members.len()))?;
                for (key, value) in members {
                    map.serialize_entry(key, value)?;
                }
                map.end()
            }
        }
    }
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Json, D::Error> {
        from.deserialize_any(Reader)
    }
}

struct Reader;

impl<'de> Visitor<'de> for Reader {
    type Value = Json;

    fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Json, E> {
        Ok(Json::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Json, E> {
        Ok(Json::Bool(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Json, E> {
        Ok(Json::Number(value.into()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Json, E> {
        Ok(Json::Number(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Json, E> {
        Ok(Number::from_f64(value).map_or(Json::Null, Json::Number))
    }

    fn visit_str<E>(self, value: &str) -> Result<Json, E> {
        Ok(Json::Text(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<Json, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = from.next_element()? {
            items.push(item);
        }
        Ok(Json::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut from: A) -> Result<Json, A::Error> {
        let mut members = Vec::new();
        while let Some(member) = from.next_entry()? {
            members.push(member);
        }
        Ok(Json::Object(members))
    }
}

/// 2^53: up to here every whole number is a double.
const EXACT: f64 = 9_007_199_254_740_992.0;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn json(text: &str) -> Json {
        Json::parse(text.as_bytes()).unwrap()
    }

    #[test]
    fn keys_are_found_whatever_their_case_and_the_last_wins() {
        let object = json(r#"{"Name":"a","NAME":"b","x":1,"name":null}"#);
        assert_eq!(object.get("name"), Some(&Json::Text("b".to_owned())));
        assert!(object.has("X") && !object.has("y"));
        assert_eq!(object.get("y"), None);
        assert!(json(r#"{"a":null}"#).has("A"));
        assert_eq!(json(r#"{"a":null}"#).get("a"), None);
        assert_eq!(json("[1]").get("a"), None);
    }

    #[test]
    fn integers_may_be_floats() {
        for (text, expected) in [
            ("4294967295", Some(4_294_967_295)),
            ("1e+09", Some(1_000_000_000)),
            ("2.0", Some(2)),
            ("0", Some(0)),
            ("2.5", None),
            ("-1", None),
            ("1e300", None),
            ("\"7\"", None),
            ("18446744073709551615", Some(u64::MAX)),
        ] {
            assert_eq!(json(text).integer(), expected, "{text}");
        }
    }

    /// As Go reads them: the nearest double, not one beside it.
    #[test]
    fn floats_are_read_exactly() {
        for text in ["1000111111111111111111111111111", "1234567890123457.0"] {
            let Json::Number(number) = json(text) else {
                panic!("{text}");
            };
            assert_eq!(number.as_f64(), text.parse().ok(), "{text}");
            assert_eq!(json(&number.to_string()), Json::Number(number));
        }
        assert_eq!(
            json("1.234567890123457e+15").integer(),
            Some(1_234_567_890_123_457)
        );
    }

    #[test]
    fn null_is_an_empty_list_and_object() {
        assert_eq!(Json::Null.list(), Some(&[][..]));
        assert_eq!(Json::Null.members(), Some(&[][..]));
        assert_eq!(json("{}").list(), None);
        assert_eq!(json("[]").members(), None);
    }

    #[test]
    fn a_second_value_and_bottomless_nesting_are_refused() {
        assert!(Json::parse(b"{} {}").is_err());
        assert!(Json::parse(&b"[".repeat(100_000)).is_err());
    }

    #[test]
    fn it_is_written_as_it_came() {
        let text = r#"{"b":[1,-2,2.5,true,null],"A":{"x":"\n"},"a":{}}"#;
        assert_eq!(json(text).to_string(), text);
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(value) = Json::parse(&bytes) {
                value.says_something();
                prop_assert_eq!(Json::parse(value.to_string().as_bytes()).unwrap(), value);
            }
        }
    }
}
