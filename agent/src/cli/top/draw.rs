//! Draws the screen of `tartan top`.

use std::time::Instant;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Clear, Paragraph, Sparkline, Wrap};

use super::figures::packets;
use super::path;
use super::picture::Picture;
use super::screen::{Drawn, Screen};
use super::sheet::{Cell, Placed, Sheet};
use super::tab::Tab;
use super::wrap::{wrapped, wrapped_within};
use crate::cli::amount;
use crate::cli::table::printable;

/// Draws everything. What it needs for the mouse it leaves in [`Screen::drawn`].
pub(super) fn draw(frame: &mut Frame<'_>, screen: &mut Screen, now: Instant) {
    let area = frame.area();
    let state = state_lines(screen, now, area.width.into());
    let rows = [
        Constraint::Length(1),
        Constraint::Length(state.len() as u16),
        Constraint::Length(1),
        Constraint::Min(0),
        Constraint::Length(1),
    ];
    let [title, problems, tabs, body, keys] = Layout::vertical(rows).areas(area);
    screen.drawn = Drawn::default();
    frame.render_widget(title_line(screen, title.width), title);
    frame.render_widget(Paragraph::new(state), problems);
    draw_tabs(frame, screen, tabs);
    match screen.sheet() {
        Some(sheet) => draw_table(frame, screen, &sheet, body),
        None => draw_path(frame, screen, body),
    }
    frame.render_widget(keys_line(screen), keys);
    if screen.is_helping {
        draw_help(frame, screen, area);
    }
}

fn title_line(screen: &Screen, width: u16) -> Line<'static> {
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let mut spans = vec![Span::styled("tartan top", bold)];
    if let Some(picture) = &screen.picture {
        let node = printable(&picture.node);
        spans.push(Span::raw(format!(
            "  {node}  {}  up {}",
            printable(&picture.format),
            amount::duration(picture.uptime)
        )));
    }
    let right = match screen.is_paused {
        true => "paused: p goes on".to_owned(),
        false => format!("every {} s", screen.interval.as_secs_f64()),
    };
    let used: usize = spans.iter().map(Span::width).sum();
    let gap = usize::from(width).saturating_sub(used + right.chars().count());
    if gap > 1 {
        spans.push(Span::raw(" ".repeat(gap)));
        spans.push(Span::styled(
            right,
            style(screen, Style::new().fg(Color::DarkGray)),
        ));
    }
    Line::from(spans)
}

/// Why there is nothing new, or what is wrong: in as many lines as it takes, up to [`MOST_STATE_LINES`].
fn state_lines(screen: &Screen, now: Instant, width: usize) -> Vec<Line<'static>> {
    let (text, style) = state(screen, now);
    let lines = wrapped_within(&text, width, MOST_STATE_LINES);
    let styled = lines.into_iter().map(|line| Line::styled(line, style));
    styled.collect()
}

fn state(screen: &Screen, now: Instant) -> (String, Style) {
    let alarm = style(screen, Style::new().fg(Color::Red)).add_modifier(Modifier::BOLD);
    let calm = style(screen, Style::new().fg(Color::Green));
    if let Some(fault) = &screen.fault {
        let age = screen
            .seen
            .map(|seen| now.saturating_duration_since(seen).as_secs());
        let shown = age.map_or_else(String::new, |age| {
            format!(" This is the state of {} ago.", amount::duration(age))
        });
        let text = format!("NO ANSWER: {}.{shown}", printable(fault));
        return (text, alarm);
    }
    let Some(picture) = &screen.picture else {
        return ("waiting for the first answer".to_owned(), Style::new());
    };
    let mut problems = picture.problems.iter();
    let Some(first) = problems.next() else {
        let text = match screen.is_back {
            true => "the agent answers again; no problem",
            false => "no problem",
        };
        return (text.to_owned(), calm);
    };
    // Before the sentence, of which the end may find no room.
    let more = match problems.count() {
        0 => String::new(),
        more => format!(" (and {more} more: `tartan status`)"),
    };
    let text = format!("PROBLEM{more}: {}", printable(&first.sentence));
    (text, alarm)
}

fn draw_tabs(frame: &mut Frame<'_>, screen: &mut Screen, area: Rect) {
    let mut left = area.x;
    for (number, tab) in (1..).zip(Tab::ALL) {
        let count = screen
            .picture
            .as_ref()
            .and_then(|picture| rows_of(picture, tab));
        let count = count.map_or_else(String::new, |count| format!(" ({count})"));
        let text = format!(" {number} {}{count} ", tab.name());
        let width = (text.chars().count() as u16).min(area.right().saturating_sub(left));
        let place = Rect::new(left, area.y, width, 1).intersection(area);
        let shown = match tab == screen.tab {
            true => Style::new().add_modifier(Modifier::REVERSED | Modifier::BOLD),
            false => Style::new(),
        };
        frame.render_widget(Line::styled(text, shown), place);
        screen.drawn.tabs.push((place, tab));
        left = left.saturating_add(width);
    }
}

fn rows_of(picture: &Picture, tab: Tab) -> Option<usize> {
    match tab {
        Tab::Path => None,
        Tab::Peers => Some(picture.peers.len()),
        Tab::Pods => Some(picture.pods.len()),
        Tab::Flows => Some(picture.flows.len()),
        Tab::Workers => Some(picture.workers.len()),
        Tab::Drops => Some(picture.drops.len()),
    }
}

fn draw_table(frame: &mut Frame<'_>, screen: &mut Screen, sheet: &Sheet, area: Rect) {
    let [head, rows] = Layout::vertical([Constraint::Length(1), Constraint::Min(0)]).areas(area);
    if sheet.rows.is_empty() {
        let text = Paragraph::new(sheet.empty).wrap(Wrap { trim: true });
        frame.render_widget(text, rows);
        return;
    }
    let view = screen.view();
    let by = view.sorted_by.unwrap_or(sheet.sorted_by);
    let order = sheet.order(by, view.reverse, &screen.filter);
    let columns = sheet.fit(usize::from(area.width));
    let height = usize::from(rows.height);
    screen.drawn.headings = head;
    screen.drawn.height = height;
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let mark = if view.reverse { '▲' } else { '▼' };
    let heading = |placed: &Placed| {
        let column = sheet.columns.get(placed.column);
        let text = column.map_or("", |column| column.heading);
        let text = match placed.column == by {
            true => format!("{text}{mark}"),
            false => text.to_owned(),
        };
        aligned(sheet, placed, &text)
    };
    let heading = columns.iter().map(heading).collect::<Vec<_>>().join("  ");
    frame.render_widget(Line::styled(heading, bold), head);
    if order.is_empty() {
        let text = format!("no row contains {:?}; Esc shows all", screen.filter);
        frame.render_widget(Paragraph::new(text), rows);
    }
    let rows_of = |numbers: &[usize]| -> Vec<Line<'static>> {
        let rows = numbers.iter().filter_map(|number| sheet.rows.get(*number));
        rows.flat_map(|row| row_lines(sheet, &columns, row))
            .collect()
    };
    // Rows of one line are made where they are shown alone: there may be thousands.
    let (total, lines) = match sheet.wraps {
        true => {
            let all = rows_of(&order);
            let total = all.len();
            let first = view.scrolled.min(total.saturating_sub(height));
            (total, all.into_iter().skip(first).take(height).collect())
        }
        false => {
            let first = view.scrolled.min(order.len().saturating_sub(height));
            let shown = order.iter().skip(first).take(height).copied();
            (order.len(), rows_of(&shown.collect::<Vec<_>>()))
        }
    };
    frame.render_widget(Paragraph::new(lines), rows);
    screen.drawn.rows = total;
    screen.drawn.columns = columns;
}

/// A row: one line, or several where the column that gives room wraps.
fn row_lines(sheet: &Sheet, columns: &[Placed], row: &[Cell]) -> Vec<Line<'static>> {
    let texts = columns.iter().map(|placed| {
        let text = row.get(placed.column).map_or("", |cell| cell.text.as_str());
        match sheet.wraps && placed.column == sheet.gives.0 {
            true => wrapped(text, placed.width),
            false => vec![text.to_owned()],
        }
    });
    let texts: Vec<Vec<String>> = texts.collect();
    let height = texts.iter().map(Vec::len).max().unwrap_or_default();
    let line = |number: usize| {
        let cells = columns.iter().zip(&texts).map(|(placed, texts)| {
            let text = texts.get(number).map_or("", String::as_str);
            aligned(sheet, placed, text)
        });
        Line::raw(cells.collect::<Vec<_>>().join("  "))
    };
    (0..height).map(line).collect()
}

/// A cell's text in its place; what is too long ends with `…`.
fn aligned(sheet: &Sheet, placed: &Placed, text: &str) -> String {
    let width = placed.width;
    let text = match text.chars().count() > width {
        true => text
            .chars()
            .take(width.saturating_sub(1))
            .chain(['…'])
            .collect(),
        false => text.to_owned(),
    };
    match sheet.columns.get(placed.column) {
        Some(column) if column.is_number => format!("{text:>width$}"),
        _ => format!("{text:<width$}"),
    }
}

fn draw_path(frame: &mut Frame<'_>, screen: &Screen, area: Rect) {
    let Some(picture) = &screen.picture else {
        return;
    };
    let device = printable(&picture.device);
    let lines = path::draw(&picture.path, &device, area.width.into());
    let count = lines.len() as u16;
    let drawn = [Constraint::Length(count), Constraint::Min(0)];
    let [drawing, past] = Layout::vertical(drawn).areas(area);
    let lines: Vec<Line<'_>> = lines.into_iter().map(Line::raw).collect();
    frame.render_widget(Paragraph::new(lines), drawing);
    let [sent, delivered] = Layout::vertical([Constraint::Fill(1); 2]).areas(past);
    draw_past(frame, screen, sent, "sent to peers", |(sent, _)| *sent);
    draw_past(
        frame,
        screen,
        delivered,
        "delivered to pods",
        |(_, delivered)| *delivered,
    );
}

/// One rate as it was, the latest at the right.
fn draw_past(
    frame: &mut Frame<'_>,
    screen: &Screen,
    area: Rect,
    name: &str,
    of: fn(&(f64, f64)) -> f64,
) {
    if area.height < 2 {
        return;
    }
    let [title, bars] = Layout::vertical([Constraint::Length(1), Constraint::Min(0)]).areas(area);
    let newest = screen.history.iter().rev().take(bars.width.into());
    let values: Vec<f64> = newest.map(of).collect();
    let highest = values.iter().copied().fold(0.0, f64::max);
    let now = values
        .first()
        .map_or_else(|| "-".to_owned(), |rate| packets(*rate));
    let text = format!("{name}: {now}/s, at most {}/s", packets(highest));
    frame.render_widget(Line::raw(text), title);
    // Eight steps a line; without packets nothing is drawn.
    let missing = usize::from(bars.width).saturating_sub(values.len());
    let data =
        std::iter::repeat_n(0, missing).chain(values.iter().rev().map(|rate| rate.round() as u64));
    let bars_style = style(screen, Style::new().fg(Color::Cyan));
    let chart = Sparkline::default()
        .data(data.collect::<Vec<u64>>())
        .max((highest.round() as u64).max(1))
        .style(bars_style);
    frame.render_widget(chart, bars);
}

fn keys_line(screen: &Screen) -> Line<'static> {
    if screen.is_typing {
        return Line::raw(format!(
            "filter: {}_  (Enter keeps it, Esc clears it)",
            screen.filter
        ));
    }
    let filter = match screen.filter.is_empty() {
        true => String::new(),
        false => format!("filter {:?}: Esc clears it  ", printable(&screen.filter)),
    };
    let keys = "q quit  Tab or 1-6 tab  s sort  r reverse  / filter  p pause  ? help";
    Line::styled(
        format!("{filter}{keys}"),
        style(screen, Style::new().fg(Color::DarkGray)),
    )
}

fn draw_help(frame: &mut Frame<'_>, screen: &Screen, area: Rect) {
    let lines: Vec<Line<'_>> = HELP
        .lines()
        .map(|line| Line::raw(format!(" {line}")))
        .collect();
    let width = HELP
        .lines()
        .map(|line| line.chars().count())
        .max()
        .unwrap_or(0) as u16
        + 4;
    let height = lines.len() as u16 + 2;
    let place = Rect::new(
        area.x + area.width.saturating_sub(width) / 2,
        area.y + area.height.saturating_sub(height) / 2,
        width,
        height,
    )
    .intersection(area);
    frame.render_widget(Clear, place);
    let border = Block::bordered()
        .title(" keys ")
        .border_style(style(screen, Style::new().fg(Color::Cyan)));
    frame.render_widget(Paragraph::new(lines).block(border), place);
}

fn style(screen: &Screen, colored: Style) -> Style {
    if screen.has_colors {
        colored
    } else {
        Style::new()
    }
}

/// At 80 columns a problem's sentence has room for some 300 letters beside the path.
const MOST_STATE_LINES: usize = 4;
const HELP: &str = "\
Tab, arrows, 1-6   another tab (or click on it)
s, S               sort by the next column, by the one before
                   (or click on a heading; again: reverse)
r                  reverse the order
Up, Down, PgUp,    scroll (or the wheel)
PgDn, Home, End
/                  show only rows that contain a text
p, blank           hold the picture, go on
+, -               longer, shorter interval
?                  this help; any key closes it
q, Esc, Ctrl-C     quit";
