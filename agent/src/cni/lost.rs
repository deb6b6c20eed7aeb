//! What pods had by the list that runtimes took so far, and have no more by the new one.

use std::path::Path;

use super::conf_dir::{Conf, OUR_PLUGIN, Plugin};

/// A sentence for each plugin of `old`, the list at `path`, whose work no plugin of `new` does. A main plugin, the first,
/// is what ours replaces. `would`: whether it has not happened yet.
pub fn lost(path: &Path, old: &Conf, new: &Conf, would: bool) -> Vec<String> {
    let chained = old.plugins.iter().skip(1);
    let gone = chained.filter(|plugin| plugin.kind != OUR_PLUGIN && !is_done(plugin, new));
    let verb = if would { "would lose" } else { "have lost" };
    let path = path.display();
    gone.map(|plugin| {
        let asked = match &plugin.capabilities[..] {
            [] => String::new(),
            asked => format!(" and what the runtime gave it ({})", asked.join(", ")),
        };
        let kind = &plugin.kind;
        format!(
            "pods {verb} the plugin {kind}{asked}, which the list {path} chains: {}",
            if kind == super::conf_list::PORTMAP {
                "put portmap into the directory of plugins and install again".to_owned()
            } else {
                format!("add {kind} to the new list if they need it")
            }
        )
    })
    .collect()
}

/// By a plugin of the same name, or by one that is given all that the runtime gave to this one.
fn is_done(plugin: &Plugin, new: &Conf) -> bool {
    let same = |other: &Plugin| other.kind == plugin.kind;
    let given = |asked: &String| new.plugins.iter().any(|p| p.capabilities.contains(asked));
    let asks = !plugin.capabilities.is_empty();
    new.plugins.iter().any(same) || asks && plugin.capabilities.iter().all(given)
}
