//! JSON as Go's `encoding/json` reads it into a struct: keys in any case, and of several the last one counts.
//!
//! serde_json's own map keeps neither the order of keys nor two that differ only in case, so a document is
//! read into lists first.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};

/// A JSON value whose objects remember every key in the order of the text.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Json {
    Null,
    Bool(bool),
    /// A whole number; anything else that JSON calls a number is `Fraction`, which Go takes for no integer.
    Whole(i64),
    Fraction,
    Text(String),
    List,
    Object(Fields),
}

/// The keys and values of one object.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Fields(Vec<(String, Json)>);

/// A value of another type than the key's.
#[derive(Debug)]
pub(super) struct Mismatch {
    pub(super) key: &'static str,
    pub(super) expected: &'static str,
}

impl Fields {
    /// The value of `key` that counts, null included.
    pub(super) fn last(&self, key: &str) -> Option<&Json> {
        self.values(key).last()
    }

    pub(super) fn text(&self, key: &'static str) -> Result<Option<&str>, Mismatch> {
        self.typed(key, "text", |value| match value {
            Json::Text(text) => Some(text.as_str()),
            _ => None,
        })
    }

    pub(super) fn flag(&self, key: &'static str) -> Result<Option<bool>, Mismatch> {
        self.typed(key, "true or false", |value| match value {
            Json::Bool(flag) => Some(*flag),
            _ => None,
        })
    }

    pub(super) fn whole(&self, key: &'static str) -> Result<Option<i64>, Mismatch> {
        self.typed(key, "a whole number", |value| match value {
            Json::Whole(number) => Some(*number),
            _ => None,
        })
    }

    /// Keys that are none of `known`, each once, as written.
    pub(super) fn unknown<'a>(&'a self, known: &'a [&str]) -> impl Iterator<Item = &'a str> {
        let keys = self.0.iter().map(|(key, _)| key.as_str());
        keys.filter(|key| !known.iter().any(|name| same_key(key, name)))
    }

    /// A null leaves what an earlier duplicate said, and a wrong type is an error even where a later duplicate
    /// is right: both as in Go.
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

    fn values<'a>(&'a self, key: &str) -> impl Iterator<Item = &'a Json> {
        self.0
            .iter()
            .filter(move |(name, _)| same_key(name, key))
            .map(|(_, value)| value)
    }
}

/// Equal under Go's folding: ASCII case, and the two letters outside ASCII that fold into it.
fn same_key(written: &str, known: &str) -> bool {
    let fold = |c: char| match c {
        '\u{17f}' => 's',
        '\u{212a}' => 'k',
        _ => c.to_ascii_lowercase(),
    };
    written.chars().map(fold).eq(known.chars().map(fold))
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Json, D::Error> {
        deserializer.deserialize_any(AnyJson)
    }
}

struct AnyJson;

impl<'de> Visitor<'de> for AnyJson {
    type Value = Json;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Json, E> {
        Ok(Json::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Json, E> {
        Ok(Json::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Json, E> {
        Ok(Json::Whole(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Json, E> {
        Ok(i64::try_from(value).map_or(Json::Fraction, Json::Whole))
    }

    fn visit_f64<E>(self, _: f64) -> Result<Json, E> {
        Ok(Json::Fraction)
    }

    fn visit_str<E>(self, value: &str) -> Result<Json, E> {
        Ok(Json::Text(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Json, A::Error> {
        while list.next_element::<Json>()?.is_some() {}
        Ok(Json::List)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Json, A::Error> {
        let mut fields = Vec::new();
        while let Some(field) = map.next_entry()? {
            fields.push(field);
        }
        Ok(Json::Object(Fields(fields)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(text: &str) -> Fields {
        match serde_json::from_str(text).unwrap() {
            Json::Object(fields) => fields,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_last_of_several_counts_whatever_its_case() {
        let of = |text| fields(text).whole("Port").unwrap();
        assert_eq!(of(r#"{"Port":1,"PORT":2}"#), Some(2));
        assert_eq!(of(r#"{"Port":1,"port":2,"Port":3}"#), Some(3));
        assert_eq!(of(r#"{"poRt":4,"Port":null}"#), Some(4));
        assert_eq!(of("{}"), None);
    }

    #[test]
    fn keys_fold_as_in_go() {
        let fields = fields("{\"\u{17f}ubnetLen\":24,\"Bac\u{212a}end\":1}");
        assert_eq!(fields.whole("SubnetLen").unwrap(), Some(24));
        assert_eq!(fields.whole("Backend").unwrap(), Some(1));
    }

    #[test]
    fn a_wrong_type_is_an_error_even_before_a_right_one() {
        assert!(fields(r#"{"Port":"1","Port":2}"#).whole("Port").is_err());
        for text in ["1.0", "1e2", "18446744073709551616", "true", "[]", "{}"] {
            assert!(
                fields(&format!("{{\"Port\":{text}}}"))
                    .whole("Port")
                    .is_err(),
                "{text}"
            );
        }
        assert!(fields(r#"{"Type":1}"#).text("Type").is_err());
        assert!(fields(r#"{"GBP":"yes"}"#).flag("GBP").is_err());
    }
}
