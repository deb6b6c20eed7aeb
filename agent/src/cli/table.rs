//! Tables for the terminal: aligned columns, no borders, control characters escaped.

use comfy_table::{Cell, CellAlignment, ContentArrangement, Table};

/// A column's heading and alignment.
#[derive(Clone, Copy, Debug)]
pub(super) enum Column {
    /// Text, aligned left.
    Words(&'static str),
    /// Numbers, aligned right.
    Number(&'static str),
}

impl Column {
    /// The heading as one word in small letters, as options name it.
    pub(super) fn name(&self) -> String {
        let (Column::Words(heading) | Column::Number(heading)) = self;
        heading.to_lowercase().replace(' ', "-")
    }
}

/// Renders rows under headings, one line for each row, or several where `width` is too small for it. Without rows the
/// text is empty.
pub(super) fn render(
    columns: &[Column],
    rows: impl IntoIterator<Item = Vec<String>>,
    width: Option<u16>,
) -> String {
    let mut table = plain(width);
    table.set_header(columns.iter().map(|column| match column {
        Column::Words(heading) | Column::Number(heading) => Cell::new(heading),
    }));
    for row in rows {
        table.add_row(row.iter().map(|text| Cell::new(printable(text))));
    }
    for (index, column) in columns.iter().enumerate() {
        if let (Column::Number(_), Some(column)) = (column, table.column_mut(index)) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    text(&table)
}

/// Renders names and values in two columns without headings.
pub(super) fn pairs(
    rows: impl IntoIterator<Item = (&'static str, String)>,
    width: Option<u16>,
) -> String {
    let mut table = plain(width);
    for (name, value) in rows {
        table.add_row([Cell::new(name), Cell::new(printable(&value))]);
    }
    text(&table)
}

/// Escapes control characters: names of nodes and pods come from files that other programs write, and a terminal must
/// not execute them.
pub(super) fn printable(text: &str) -> String {
    text.chars()
        .fold(String::with_capacity(text.len()), |mut shown, character| {
            if character.is_control() {
                shown.extend(character.escape_default());
            } else {
                shown.push(character);
            }
            shown
        })
}

/// Joins values with commas; `-` for none.
pub(super) fn list<T: ToString>(values: impl IntoIterator<Item = T>) -> String {
    let texts: Vec<String> = values.into_iter().map(|value| value.to_string()).collect();
    if texts.is_empty() {
        "-".to_owned()
    } else {
        texts.join(", ")
    }
}

/// The value, or `-`.
pub(super) fn or_dash(text: &str) -> String {
    if text.is_empty() {
        "-".to_owned()
    } else {
        text.to_owned()
    }
}

fn plain(width: Option<u16>) -> Table {
    let mut table = Table::new();
    table.load_style(comfy_table::presets::NOTHING);
    if let Some(width) = width {
        // The blank before the first cell is not printed.
        table.set_content_arrangement(ContentArrangement::Dynamic);
        table.set_width(width.saturating_add(1));
    }
    table
}

fn text(table: &Table) -> String {
    if table.is_empty() {
        return String::new();
    }
    table.lines().fold(String::new(), |mut text, line| {
        // Every cell is padded by one column on both sides.
        let line = line.strip_prefix(' ').unwrap_or(&line);
        text.push_str(line.trim_end());
        text.push('\n');
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_lines_have_no_trailing_spaces() {
        let columns = [
            Column::Words("NAME"),
            Column::Number("COUNT"),
            Column::Words("REASON"),
        ];
        let rows = [("a", "1", ""), ("longer", "1000", "because")];
        let rows = rows.map(|(a, b, c)| vec![a.to_owned(), b.to_owned(), c.to_owned()]);
        assert_eq!(
            render(&columns, rows, None),
            "NAME    COUNT  REASON\n\
             a           1\n\
             longer   1000  because\n"
        );
        assert_eq!(render(&columns, [], None), "");
    }

    #[test]
    fn control_characters_never_reach_the_terminal() {
        assert_eq!(
            printable("evil\u{1b}[2Jname\n\u{9b}"),
            "evil\\u{1b}[2Jname\\n\\u{9b}"
        );
        assert_eq!(printable("nœud-1"), "nœud-1");
        let text = render(&[Column::Words("NODE")], [vec!["a\nb".to_owned()]], None);
        assert_eq!(text.lines().count(), 2);
    }
}
