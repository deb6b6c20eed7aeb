//! JSON as Go's `encoding/json` reads it into a struct, because container runtimes, their plugins and flannel read theirs
//! so, and the same file should mean the same here. What Go does (decode.go, `object` and `literalStore`; fold.go):
//!
//! - A key matches a field whatever its case, by Unicode's simple folding: beside ASCII that is U+017F for `s` and U+212A
//!   for `k`. A map's keys are exact.
//! - Of several keys of one field the last counts, an exact one no more than another. Several objects fill one struct,
//!   field by field.
//! - `null` leaves a text, number, flag or struct as it was, so it is as good as no key. (Go empties a list or map that an
//!   earlier key filled; here the earlier one stays.)
//! - A value of another type is an error even where a later key is right.
//!
//! Integers may arrive as floats (`1e+09`) where they passed through a map of interfaces on their way.
//! serde_json's own map keeps neither the order of keys nor several equal ones.

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

/// A value of another type than its key's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// The key.
    pub key: &'static str,
    /// What its value would have to be.
    pub expected: &'static str,
}

impl Json {
    /// Reads exactly one value; nesting is bounded (128, by serde_json).
    ///
    /// # Errors
    /// What is wrong with the text, and where.
    pub fn parse(bytes: &[u8]) -> Result<Json, serde_json::Error> {
        serde_json::from_slice(bytes)
    }

    /// The value of `key`; None when it is absent, null, or this is no object.
    pub fn get(&self, key: &str) -> Option<&Json> {
        self.values(key).rfind(|value| **value != Json::Null)
    }

    /// The last value of `key`, null included.
    pub fn last(&self, key: &str) -> Option<&Json> {
        self.values(key).last()
    }

    /// The value of `key` where that is a struct or a map: of several objects the members of all.
    pub fn object(&self, key: &str) -> Option<Json> {
        let last = self.get(key)?;
        if !matches!(last, Json::Object(_)) {
            return Some(last.clone());
        }
        let objects = self.values(key).filter_map(Json::members);
        Some(Json::Object(objects.flatten().cloned().collect()))
    }

    /// Whether an object has `key` at all, be its value null.
    pub fn has(&self, key: &str) -> bool {
        self.values(key).next().is_some()
    }

    /// The text of `key`.
    ///
    /// # Errors
    /// [`Mismatch`] where one of its values is neither text nor null.
    pub fn text_of(&self, key: &'static str) -> Result<Option<&str>, Mismatch> {
        self.typed(key, "text", Json::text)
    }

    /// The truth value of `key`.
    ///
    /// # Errors
    /// [`Mismatch`] where one of its values is neither that nor null.
    pub fn flag_of(&self, key: &'static str) -> Result<Option<bool>, Mismatch> {
        self.typed(key, "true or false", |value| match value {
            Json::Bool(flag) => Some(*flag),
            _ => None,
        })
    }

    /// The whole number of `key`, as Go reads one into an int64: `1.0` and `1e2` are none.
    ///
    /// # Errors
    /// [`Mismatch`] where one of its values is neither that nor null.
    pub fn whole_of(&self, key: &'static str) -> Result<Option<i64>, Mismatch> {
        self.typed(key, "a whole number", |value| match value {
            Json::Number(number) => number.as_i64(),
            _ => None,
        })
    }

    /// The keys of an object that are none of `known`, as written.
    pub fn unknown_keys<'a>(&'a self, known: &'a [&str]) -> impl Iterator<Item = &'a str> {
        let keys = self.members().unwrap_or_default().iter();
        keys.map(|(key, _)| key.as_str())
            .filter(|key| !known.iter().any(|name| same_key(key, name)))
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

    fn typed<'a, T>(
        &'a self,
        key: &'static str,
        expected: &'static str,
        read: impl Fn(&'a Json) -> Option<T>,
    ) -> Result<Option<T>, Mismatch> {
        let mut found = None;
        for value in self.values(key).filter(|value| **value != Json::Null) {
            found = Some(read(value).ok_or(Mismatch { key, expected })?);
        }
        Ok(found)
    }

    fn values(&self, key: &str) -> impl DoubleEndedIterator<Item = &Json> {
        let members = self.members().unwrap_or_default().iter();
        members
            .filter(move |(name, _)| same_key(name, key))
            .map(|(_, value)| value)
    }
}

/// Equal under Go's folding of a key that is ASCII.
fn same_key(written: &str, known: &str) -> bool {
    let fold = |c: char| match c {
        '\u{17f}' => 's',
        '\u{212a}' => 'k',
        _ => c.to_ascii_lowercase(),
    };
    written.chars().map(fold).eq(known.chars().map(fold))
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

    /// Go's `{"HTML":"foo","html":"bar"}` for a field HTML is "bar".
    #[test]
    fn an_exact_key_counts_no_more_than_a_folded_one() {
        let of = |text| json(text).whole_of("Port").unwrap();
        assert_eq!(of(r#"{"Port":1,"PORT":2}"#), Some(2));
        assert_eq!(of(r#"{"Port":1,"port":2,"Port":3}"#), Some(3));
        assert_eq!(of(r#"{"poRt":4,"Port":null}"#), Some(4));
        assert_eq!(of("{}"), None);
        assert_eq!(
            json(r#"{"a":1,"A":null}"#).last("a"),
            Some(&Json::Null),
            "null included"
        );
    }

    #[test]
    fn keys_fold_as_in_go() {
        let fields = json("{\"\u{17f}ubnetLen\":24,\"Bac\u{212a}end\":1,\"\u{c4}\":2}");
        assert_eq!(fields.whole_of("SubnetLen").unwrap(), Some(24));
        assert_eq!(fields.whole_of("Backend").unwrap(), Some(1));
        assert_eq!(fields.get("backend"), fields.get("Backend"));
        let unknown: Vec<_> = fields.unknown_keys(&["subnetlen", "Backend"]).collect();
        assert_eq!(unknown, ["\u{c4}"]);
    }

    #[test]
    fn several_objects_fill_one_struct() {
        let conf = json(
            r#"{"ipam":{"type":"a","x":{"p":1}},"IPAM":{"Type":"b","X":{"q":2}},"ipam":null}"#,
        );
        let ipam = conf.object("ipam").unwrap();
        assert_eq!(ipam.text_of("type").unwrap(), Some("b"));
        let x = ipam.object("x").unwrap();
        assert_eq!(
            (x.whole_of("p"), x.whole_of("q")),
            (Ok(Some(1)), Ok(Some(2)))
        );
        assert_eq!(conf.object("dns"), None);
        assert_eq!(json(r#"{"a":{},"a":7}"#).object("a"), Some(json("7")));
    }

    #[test]
    fn a_wrong_type_is_an_error_even_before_a_right_one() {
        assert!(json(r#"{"Port":"1","Port":2}"#).whole_of("Port").is_err());
        for text in ["1.0", "1e2", "18446744073709551616", "true", "[]", "{}"] {
            let fields = json(&format!("{{\"Port\":{text}}}"));
            assert!(fields.whole_of("Port").is_err(), "{text}");
        }
        assert!(json(r#"{"Type":1}"#).text_of("Type").is_err());
        assert!(json(r#"{"GBP":"yes"}"#).flag_of("GBP").is_err());
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
