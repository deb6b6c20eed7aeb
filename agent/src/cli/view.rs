//! How answers are shown: which rows and in which order, how wide, in colour or not, once or again and again.

use std::io::{self, IsTerminal};
use std::net::IpAddr;
use std::time::Duration;

use clap::builder::styling::{AnsiColor, Style};
use clap::{Args, ValueEnum};
use ipnet::IpNet;

use super::order::natural;
use super::table::{self, Column};

/// Arguments of every command that shows an answer.
#[derive(Args, Clone, Debug)]
pub(super) struct ShowArgs {
    /// Print again every SECONDS, until interrupted
    #[arg(short, long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "2", value_parser = seconds)]
    pub(super) watch: Option<Duration>,
    /// Use colours; `auto`: on a terminal, unless NO_COLOR is set
    #[arg(long, value_enum, value_name = "WHEN", default_value_t = Color::Auto)]
    color: Color,
    /// Wrap tables to COLUMNS [default: the terminal's width; no limit in a pipe]
    #[arg(long, value_name = "COLUMNS", value_parser = clap::value_parser!(u16).range(40..))]
    width: Option<u16>,
}

/// Arguments of the commands that list rows. They concern tables: JSON has all rows, in the agent's order.
#[derive(Args, Clone, Debug, Default)]
pub(super) struct RowArgs {
    /// Sort by a column, as `tx-bytes`; with `-` before it from the largest down
    #[arg(long, value_name = "COLUMN", allow_hyphen_values = true)]
    sort: Option<String>,
    /// Show rows that contain TEXT, or whose COLUMN is it (COLUMN=TEXT); may be given several times
    #[arg(long, value_name = "[COLUMN=]TEXT")]
    filter: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Color {
    Auto,
    Always,
    Never,
}

/// What the arguments and the terminal come to. The default is that of a pipe.
#[derive(Clone, Debug, Default)]
pub(super) struct View {
    width: Option<u16>,
    color: bool,
    /// The column's number, and whether the largest comes first.
    sort: Option<(usize, bool)>,
    filters: Vec<Filter>,
}

#[derive(Clone, Debug)]
struct Filter {
    /// None: any.
    column: Option<usize>,
    /// In small letters.
    text: String,
}

impl View {
    /// # Errors
    /// A sentence where `rows` names a column that is none of `columns`.
    pub(super) fn new(show: &ShowArgs, rows: &RowArgs, columns: &[Column]) -> Result<View, String> {
        let terminal = io::stdout().is_terminal();
        let size = || rustix::termios::tcgetwinsize(io::stdout()).ok();
        let widest = size().filter(|size| terminal && size.ws_col >= LEAST_WIDTH);
        let sort = rows.sort.as_deref().map(|named| {
            let falling = named.strip_prefix('-');
            number(falling.unwrap_or(named), columns).map(|number| (number, falling.is_some()))
        });
        let filters = rows
            .filter
            .iter()
            .map(|filter| Filter::parse(filter, columns));
        Ok(View {
            width: show.width.or(widest.map(|size| size.ws_col)),
            color: show.color.is_on(),
            sort: sort.transpose()?,
            filters: filters.collect::<Result<_, _>>()?,
        })
    }

    /// Of a command that shows no table.
    pub(super) fn of_color(color: Color) -> View {
        View {
            color: color.is_on(),
            ..View::default()
        }
    }

    /// The numbers of the rows to show, in their order. `by` sorts where no other order is asked for.
    pub(super) fn pick(&self, rows: &[Vec<String>], by: Option<usize>) -> Vec<usize> {
        let all = rows.iter().enumerate();
        let held = all.filter(|(_, row)| self.filters.iter().all(|filter| filter.holds(row)));
        let mut picked: Vec<(usize, &Vec<String>)> = held.collect();
        let cell = |row: &Vec<String>, column: usize| row.get(column).cloned().unwrap_or_default();
        if let Some((column, falling)) = self.sort.or(by.map(|column| (column, false))) {
            picked.sort_by(|(_, a), (_, b)| {
                let order = natural(&cell(a, column), &cell(b, column));
                if falling { order.reverse() } else { order }
            });
        }
        picked.into_iter().map(|(number, _)| number).collect()
    }

    /// A table of these rows, its headings set off.
    pub(super) fn table(
        &self,
        columns: &[Column],
        rows: impl IntoIterator<Item = Vec<String>>,
    ) -> String {
        let text = table::render(columns, rows, self.width);
        match text.split_once('\n') {
            Some((headings, rest)) => format!("{}\n{rest}", self.strong(headings)),
            None => text,
        }
    }

    /// The text as one of many: on a terminal in the place of the one before.
    pub(super) fn again(&self, text: &str) -> String {
        if io::stdout().is_terminal() {
            // Home, the text, and everything behind it cleared: the screen does not flicker.
            let text = text.replace('\n', "\u{1b}[K\n");
            format!("\u{1b}[H{text}\u{1b}[J")
        } else {
            format!("{text}\n")
        }
    }

    /// Names and values.
    pub(super) fn pairs(&self, rows: impl IntoIterator<Item = (&'static str, String)>) -> String {
        table::pairs(rows, self.width)
    }

    pub(super) fn strong(&self, text: &str) -> String {
        self.styled(text, Style::new().bold())
    }

    pub(super) fn alarming(&self, text: &str) -> String {
        self.styled(
            text,
            Style::new().bold().fg_color(Some(AnsiColor::Red.into())),
        )
    }

    pub(super) fn warning(&self, text: &str) -> String {
        self.styled(
            text,
            Style::new().bold().fg_color(Some(AnsiColor::Yellow.into())),
        )
    }

    fn styled(&self, text: &str, style: Style) -> String {
        if self.color && !text.is_empty() {
            format!("{style}{text}{style:#}")
        } else {
            text.to_owned()
        }
    }
}

impl Color {
    fn is_on(self) -> bool {
        let no_color = || std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        match self {
            Color::Always => true,
            Color::Never => false,
            Color::Auto => io::stdout().is_terminal() && !no_color(),
        }
    }
}

impl Filter {
    fn parse(text: &str, columns: &[Column]) -> Result<Filter, String> {
        let (column, text) = match text.split_once('=') {
            Some((column, text)) => (Some(number(column, columns)?), text),
            None => (None, text),
        };
        let text = text.to_lowercase();
        Ok(Filter { column, text })
    }

    /// A column holds one value or several with commas between them. A prefix is meant by each address in it.
    fn holds(&self, row: &[String]) -> bool {
        let address = self.text.parse::<IpAddr>().ok();
        let has_address = |value: &str| {
            let prefix = value.parse::<IpNet>().ok();
            prefix
                .zip(address)
                .is_some_and(|(prefix, address)| prefix.contains(&address))
        };
        match self.column {
            None => row.iter().any(|cell| {
                cell.to_lowercase().contains(&self.text) || cell.split(", ").any(has_address)
            }),
            Some(column) => row.get(column).is_some_and(|cell| {
                let cell = cell.to_lowercase();
                cell.split(", ")
                    .any(|value| value == self.text || has_address(value))
            }),
        }
    }
}

/// How many of them: `3 peers`, `1 peer`, with a filter `1 of 3 peers`.
pub(super) fn total(shown: usize, all: usize, one: &str, several: &str) -> String {
    let name = if all == 1 { one } else { several };
    if shown == all {
        format!("{all} {name}")
    } else {
        format!("{shown} of {all} {name}")
    }
}

fn number(named: &str, columns: &[Column]) -> Result<usize, String> {
    let mut names = columns.iter().map(Column::name);
    names
        .position(|name| name == named.to_lowercase())
        .ok_or_else(|| {
            let names: Vec<String> = columns.iter().map(Column::name).collect();
            format!(
                "there is no column {named:?}; use one of {}",
                names.join(", ")
            )
        })
}

fn seconds(text: &str) -> Result<Duration, String> {
    let number: Option<f64> = text.parse().ok();
    match number.filter(|number| (0.1..=86_400.0).contains(number)) {
        Some(number) => Ok(Duration::from_secs_f64(number)),
        None => Err("use 0.1 to 86400 seconds".to_owned()),
    }
}

/// Below it nothing fits: no terminal that is read is so narrow.
const LEAST_WIDTH: u16 = 40;
