//! Tables for people: columns by width, no borders, nothing that a terminal would obey.

use comfy_table::{Cell, CellAlignment, Table};

/// A column's heading and side.
#[derive(Clone, Copy, Debug)]
pub(super) enum Column {
    /// Words, left.
    Words(&'static str),
    /// Numbers, right.
    Number(&'static str),
}

/// Renders rows under headings; one line each, ending in a line break. No rows, no text.
pub(super) fn render(columns: &[Column], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut table = plain();
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

/// Renders names and what they stand for.
pub(super) fn pairs(rows: impl IntoIterator<Item = (&'static str, String)>) -> String {
    let mut table = plain();
    for (name, value) in rows {
        table.add_row([Cell::new(name), Cell::new(printable(&value))]);
    }
    text(&table)
}

/// Names of nodes and pods come from stores that others write: control characters are shown, not obeyed.
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

fn plain() -> Table {
    let mut table = Table::new();
    table.load_style(comfy_table::presets::NOTHING);
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
    fn columns_line_up_and_lines_end_where_their_text_ends() {
        let columns = [
            Column::Words("NAME"),
            Column::Number("COUNT"),
            Column::Words("WHY"),
        ];
        let rows = [("a", "1", ""), ("longer", "1000", "because")];
        let rows = rows.map(|(a, b, c)| vec![a.to_owned(), b.to_owned(), c.to_owned()]);
        assert_eq!(
            render(&columns, rows),
            "NAME    COUNT  WHY\n\
             a           1\n\
             longer   1000  because\n"
        );
        assert_eq!(render(&columns, []), "");
    }

    #[test]
    fn what_a_store_wrote_cannot_drive_the_terminal() {
        assert_eq!(
            printable("evil\u{1b}[2Jname\n\u{9b}"),
            "evil\\u{1b}[2Jname\\n\\u{9b}"
        );
        assert_eq!(printable("nœud-1"), "nœud-1");
        let text = render(&[Column::Words("NODE")], [vec!["a\nb".to_owned()]]);
        assert_eq!(text.lines().count(), 2);
    }
}
