//! Patches: JSON merge patches (RFC 7396), and Kubernetes' strategic merge patches as far as a Node has use for them.
//!
//! A strategic merge patch merges some lists by a key of their items, and may hold directives: `$patch` (`replace` or
//! `delete`) in an object, `$deleteFromPrimitiveList/LIST` and `$setElementOrder/LIST` beside a list, `$retainKeys` in
//! an object. Which lists merge is in the types' tags `patchStrategy` and `patchMergeKey` (`k8s.io/api/core/v1`).

use serde_json::{Map, Value};

/// RFC 7396, section 2.
pub(super) fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    let target = object(target);
    for (key, value) in patch {
        if value.is_null() {
            target.remove(key);
        } else {
            merge(target.entry(key.clone()).or_insert(Value::Null), value);
        }
    }
}

/// A strategic merge patch of a Node.
///
/// # Errors
/// With what is wrong with the patch.
pub(super) fn strategic(target: &mut Value, patch: &Value) -> Result<(), String> {
    patched(target, patch, "")
}

/// `path` is that of `target` in the Node, without indices.
fn patched(target: &mut Value, patch: &Value, path: &str) -> Result<(), String> {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return Ok(());
    };
    match patch.get("$patch").map(Value::as_str) {
        None | Some(Some("merge")) => {}
        Some(Some("replace")) => {
            let kept = patch.iter().filter(|(key, _)| !key.starts_with('$'));
            *target = Value::Object(
                kept.map(|(key, value)| (key.clone(), value.clone()))
                    .collect(),
            );
            return Ok(());
        }
        Some(Some("delete")) => {
            *target = Value::Object(Map::new());
            return Ok(());
        }
        Some(_) => return Err("unknown patch type found in strategic merge patch".to_owned()),
    }
    let target = object(target);
    let before = target.clone();
    if let Some(Value::Array(kept)) = patch.get("$retainKeys") {
        target.retain(|key, _| kept.iter().any(|kept| kept == key));
    }
    for (key, value) in patch {
        if let Some(list) = key.strip_prefix("$deleteFromPrimitiveList/") {
            let (Some(Value::Array(list)), Some(gone)) = (target.get_mut(list), value.as_array())
            else {
                continue;
            };
            list.retain(|item| !gone.contains(item));
        } else if !key.starts_with('$') {
            let path = format!("{path}.{key}");
            match (value, merged(&path)) {
                (Value::Null, _) => {
                    target.remove(key);
                }
                (Value::Array(items), Some(merge_key)) => {
                    let list = target
                        .entry(key.clone())
                        .or_insert_with(|| Value::Array(vec![]));
                    merge_list(list, items, merge_key, &path)?;
                }
                (value, _) => patched(
                    target.entry(key.clone()).or_insert(Value::Null),
                    value,
                    &path,
                )?,
            }
        }
    }
    for (key, order) in patch {
        let (Some(list), Value::Array(order)) = (key.strip_prefix("$setElementOrder/"), order)
        else {
            continue;
        };
        let merge_key = merged(&format!("{path}.{list}"));
        let old = before.get(list).and_then(Value::as_array);
        if let (Some(Value::Array(list)), Some(merge_key)) = (target.get_mut(list), merge_key) {
            *list = ordered(
                std::mem::take(list),
                order,
                old.map_or(&[], Vec::as_slice),
                merge_key,
            );
        }
    }
    Ok(())
}

/// By which key the items of a list are merged; an empty one means that they are values, of which a set is made.
fn merged(path: &str) -> Option<&'static str> {
    match path {
        ".metadata.ownerReferences" => Some("uid"),
        ".metadata.finalizers" | ".spec.podCIDRs" => Some(""),
        ".status.conditions" | ".status.addresses" => Some("type"),
        _ => None,
    }
}

fn merge_list(list: &mut Value, items: &[Value], key: &str, path: &str) -> Result<(), String> {
    if !list.is_array() {
        *list = Value::Array(vec![]);
    }
    let Value::Array(list) = list else {
        return Ok(());
    };
    let replaced = |item: &&Value| item.get("$patch").is_some_and(|what| what == "replace");
    if items.iter().any(|item| replaced(&item)) {
        *list = items
            .iter()
            .filter(|item| !replaced(item))
            .cloned()
            .collect();
        return Ok(());
    }
    let before = list.clone();
    for item in items {
        let wanted = identity(item, key);
        if wanted.is_none() {
            return Err(format!(
                "map: {item} does not contain declared merge key: {key}"
            ));
        }
        let found = list.iter().position(|one| identity(one, key) == wanted);
        let gone = item.get("$patch").is_some_and(|what| what == "delete");
        match found {
            Some(found) if gone => {
                list.remove(found);
            }
            Some(_) if key.is_empty() => {}
            Some(found) => patched(&mut list[found], item, path)?,
            None if gone => {}
            None if key.is_empty() => list.push(item.clone()),
            None => {
                let mut new = Value::Null;
                patched(&mut new, item, path)?;
                list.push(new);
            }
        }
    }
    *list = ordered(std::mem::take(list), items, &before, key);
    Ok(())
}

/// The order of a merged list (`normalizeElementOrder` of `strategicpatch`): the items that `wanted` names in its order,
/// and among them the others, each before the first that was behind it in `before`.
fn ordered(list: Vec<Value>, wanted: &[Value], before: &[Value], key: &str) -> Vec<Value> {
    let place = |among: &[Value], item: &Value| {
        let same = |one: &Value| identity(one, key) == identity(item, key);
        among.iter().position(same)
    };
    let (mut named, others): (Vec<_>, Vec<_>) = list
        .into_iter()
        .partition(|item| place(wanted, item).is_some());
    named.sort_by_key(|item| place(wanted, item));
    let (mut named, mut others) = (named.into_iter().peekable(), others.into_iter().peekable());
    let mut all = Vec::new();
    while let (Some(one), Some(other)) = (named.peek(), others.peek()) {
        let first = match (place(before, other), place(before, one)) {
            (Some(other), Some(one)) if other < one => others.next(),
            _ => named.next(),
        };
        all.extend(first);
    }
    all.extend(named.chain(others));
    all
}

/// What makes an item of a merged list the same as another one.
fn identity<'a>(item: &'a Value, key: &str) -> Option<&'a Value> {
    if key.is_empty() {
        Some(item)
    } else {
        item.get(key)
    }
}

/// As an object, which it becomes if it is none.
fn object(value: &mut Value) -> &mut Map<String, Value> {
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    value.as_object_mut().unwrap()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// The example of RFC 7396, section 3.
    #[test]
    fn a_merge_patch_is_that_of_the_rfc() {
        let mut document = json!({
            "title": "Goodbye!", "author": {"givenName": "John", "familyName": "Doe"},
            "tags": ["example", "sample"], "content": "This will be unchanged",
        });
        merge(
            &mut document,
            &json!({
                "title": "Hello!", "phoneNumber": "+01-123-456-7890", "author": {"familyName": null},
                "tags": ["example"],
            }),
        );
        let expected = json!({
            "title": "Hello!", "author": {"givenName": "John"}, "tags": ["example"],
            "content": "This will be unchanged", "phoneNumber": "+01-123-456-7890",
        });
        assert_eq!(document, expected);
    }

    #[test]
    fn values_are_a_set_and_leave_it_by_a_directive() {
        let mut node = json!({"metadata": {"finalizers": ["a", "b"]}});
        let patch = json!({"metadata": {"finalizers": ["b", "c"]}});
        strategic(&mut node, &patch).unwrap();
        assert_eq!(node, json!({"metadata": {"finalizers": ["a", "b", "c"]}}));
        let patch = json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["a"]}});
        strategic(&mut node, &patch).unwrap();
        assert_eq!(node, json!({"metadata": {"finalizers": ["b", "c"]}}));
    }

    #[test]
    fn keys_that_are_not_retained_go() {
        let mut node = json!({"spec": {"a": 1, "b": 2, "c": 3}});
        strategic(
            &mut node,
            &json!({"spec": {"$retainKeys": ["a", "d"], "d": 4}}),
        )
        .unwrap();
        assert_eq!(node, json!({"spec": {"a": 1, "d": 4}}));
    }

    #[test]
    fn an_item_without_its_key_and_an_unknown_directive_are_refused() {
        let mut node = json!({"status": {"conditions": [{"type": "Ready"}]}});
        for patch in [
            json!({"status": {"conditions": [{"status": "True"}]}}),
            json!({"status": {"$patch": "other"}}),
        ] {
            strategic(&mut node, &patch).unwrap_err();
        }
    }
}
