//! `tartan routes`: which node owns which prefix, and which kernel routes bypass the overlay.

use super::table::{Column, or_dash};
use super::view::{View, total};
use crate::api::wire::{RouteKind, Routes};

/// The routes as text.
pub(super) fn render(routes: &Routes, view: &View) -> String {
    let rows = routes.routes.iter().map(|route| {
        let note = match route.kind {
            RouteKind::Peer => "",
            RouteKind::NoWay => {
                "UNREACHABLE: this node has no public address of that family; see public-ipv6"
            }
            RouteKind::Own => "this node",
            RouteKind::Bypass => "BYPASS: a kernel route sends these packets around the overlay",
        };
        vec![
            route.prefix.to_string(),
            or_dash(&route.node),
            or_dash(&route.via),
            or_dash(&route.format),
            note.to_owned(),
        ]
    });
    let rows: Vec<Vec<String>> = rows.collect();
    let picked = view.pick(&rows, None);
    let shown = picked
        .iter()
        .filter_map(|number| rows.get(*number).cloned());
    let text = view.table(&COLUMNS, shown);
    text + &total(picked.len(), rows.len(), "prefix", "prefixes") + "\n"
}

/// Whether a kernel route bypasses the overlay, or a prefix cannot be reached through it.
pub(super) fn problem(routes: &Routes) -> bool {
    let wrong = [RouteKind::Bypass, RouteKind::NoWay];
    routes
        .routes
        .iter()
        .any(|route| wrong.contains(&route.kind))
}

/// What `--sort` and `--filter` know.
pub(super) const COLUMNS: [Column; 5] = [
    Column::Words("PREFIX"),
    Column::Words("OWNER"),
    Column::Words("VIA"),
    Column::Words("FORMAT"),
    Column::Words("NOTE"),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::wire::Route;

    #[test]
    fn own_peer_and_bypassed_prefixes_are_printed() {
        let route = |prefix: &str, kind, via: &str, format: &str, node: &str| Route {
            prefix: prefix.parse().unwrap(),
            kind,
            via: via.into(),
            format: format.into(),
            node: node.into(),
        };
        let mut routes = Routes {
            routes: vec![
                route("10.244.1.0/24", RouteKind::Own, "tartan0", "", "node1"),
                route(
                    "10.244.2.0/24",
                    RouteKind::Peer,
                    "192.0.2.2",
                    "vxlan",
                    "node2",
                ),
            ],
        };
        assert!(!problem(&routes));
        let wrong = [
            route("10.244.2.8/32", RouteKind::Bypass, "eth1", "", ""),
            route(
                "10.244.3.0/24",
                RouteKind::NoWay,
                "2001:db8::3",
                "vxlan",
                "node3",
            ),
        ];
        for wrong in &wrong {
            assert!(problem(&Routes {
                routes: vec![wrong.clone()]
            }));
        }
        routes.routes.extend(wrong);
        assert_eq!(
            render(&routes, &View::default()),
            "\
PREFIX         OWNER  VIA          FORMAT  NOTE
10.244.1.0/24  node1  tartan0      -       this node
10.244.2.0/24  node2  192.0.2.2    vxlan
10.244.2.8/32  -      eth1         -       BYPASS: a kernel route sends these packets around the overlay
10.244.3.0/24  node3  2001:db8::3  vxlan   UNREACHABLE: this node has no public address of that family; see public-ipv6
4 prefixes
"
        );
    }
}
