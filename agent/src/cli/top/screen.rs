//! What the screen of `tartan top` shows and how keys and mouse change it. It neither draws nor asks.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use ratatui::crossterm::event::{
    Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers, MouseButton, MouseEvent, MouseEventKind,
};
use ratatui::layout::{Position, Rect};

use super::picture::Picture;
use super::sheet::{self, Placed, Sheet};
use super::tab::Tab;

/// The state of the screen.
#[derive(Debug)]
pub(super) struct Screen {
    /// The tab that is shown.
    pub(super) tab: Tab,
    /// The latest picture; none before the first.
    pub(super) picture: Option<Picture>,
    /// When it came.
    pub(super) seen: Option<Instant>,
    /// Why there is no newer one, in words.
    pub(super) fault: Option<String>,
    /// The agent was away and has come back.
    pub(super) is_back: bool,
    /// New pictures are not shown.
    pub(super) is_paused: bool,
    /// The keys are explained.
    pub(super) is_helping: bool,
    /// Rows that contain it are shown.
    pub(super) filter: String,
    /// Keys are added to the filter.
    pub(super) is_typing: bool,
    /// Seconds from sample to sample.
    pub(super) interval: Duration,
    /// Whether colours are used.
    pub(super) has_colors: bool,
    /// Packets per second to and from peers, the latest last.
    pub(super) history: VecDeque<(f64, f64)>,
    /// How each tab's table is sorted and scrolled.
    views: [TableView; Tab::ALL.len()],
    /// Where the table and the tabs were drawn last, for the mouse.
    pub(super) drawn: Drawn,
}

/// How a table is shown.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TableView {
    /// The column that sorts it, if another than its own.
    pub(super) sorted_by: Option<usize>,
    /// The other way round.
    pub(super) reverse: bool,
    /// Rows above the first that is shown.
    pub(super) scrolled: usize,
}

/// Where things stand on the screen.
#[derive(Debug, Default)]
pub(super) struct Drawn {
    /// The tabs.
    pub(super) tabs: Vec<(Rect, Tab)>,
    /// The table's headings.
    pub(super) headings: Rect,
    /// Its columns.
    pub(super) columns: Vec<Placed>,
    /// Rows that fit.
    pub(super) height: usize,
    /// Rows that there are.
    pub(super) rows: usize,
}

/// What is to be done beside drawing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Nothing.
    Draw,
    /// Sample at this interval.
    Sample(Duration),
    /// End.
    Quit,
}

impl Screen {
    pub(super) fn new(tab: Tab, interval: Duration, has_colors: bool) -> Screen {
        Screen {
            tab,
            picture: None,
            seen: None,
            fault: None,
            is_back: false,
            is_paused: false,
            is_helping: false,
            filter: String::new(),
            is_typing: false,
            interval,
            has_colors,
            history: VecDeque::with_capacity(HISTORY),
            views: Default::default(),
            drawn: Drawn::default(),
        }
    }

    /// Takes a new picture.
    pub(super) fn show(&mut self, picture: Picture, at: Instant) {
        let rate = |count: super::picture::Count| count.per_second.unwrap_or_default();
        let in_kernel = picture.path.kernel_path.unwrap_or_default();
        if picture.interval.is_some() {
            if self.history.len() >= HISTORY {
                self.history.pop_front();
            }
            self.history.push_back((
                rate(picture.path.outbound.sent) + rate(in_kernel.outbound.sent),
                rate(picture.path.inbound.delivered) + rate(in_kernel.inbound.delivered),
            ));
        }
        self.is_back = self.fault.take().is_some();
        if !self.is_paused {
            self.picture = Some(picture);
            self.seen = Some(at);
        }
    }

    /// Notes why there is no picture.
    pub(super) fn miss(&mut self, reason: String) {
        self.fault = Some(reason);
    }

    /// The table of the tab; none of the path.
    pub(super) fn sheet(&self) -> Option<Sheet> {
        sheet::of(self.tab, self.picture.as_ref()?)
    }

    /// How the tab's table is shown.
    pub(super) fn view(&self) -> TableView {
        self.views
            .get(self.tab as usize)
            .copied()
            .unwrap_or_default()
    }

    fn view_mut(&mut self) -> Option<&mut TableView> {
        self.views.get_mut(self.tab as usize)
    }

    /// Reacts to a key, the mouse, or a new size.
    pub(super) fn react(&mut self, event: &Event) -> Action {
        match event {
            Event::Key(key) if key.kind != KeyEventKind::Release => self.key(*key),
            Event::Mouse(mouse) => {
                self.mouse(*mouse);
                Action::Draw
            }
            _ => Action::Draw,
        }
    }

    fn key(&mut self, key: KeyEvent) -> Action {
        if key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c') {
            return Action::Quit;
        }
        if self.is_typing {
            self.type_filter(key.code);
            return Action::Draw;
        }
        if self.is_helping {
            self.is_helping = false;
            return Action::Draw;
        }
        match key.code {
            KeyCode::Char('q') => return Action::Quit,
            KeyCode::Esc if self.filter.is_empty() => return Action::Quit,
            KeyCode::Esc => self.filter.clear(),
            KeyCode::Char('?' | 'h') | KeyCode::F(1) => self.is_helping = true,
            KeyCode::Char('/') => self.is_typing = true,
            KeyCode::Char('p' | ' ') => self.is_paused = !self.is_paused,
            KeyCode::Tab | KeyCode::Right => self.tab = self.tab.next(),
            KeyCode::BackTab | KeyCode::Left => self.tab = self.tab.previous(),
            KeyCode::Char(digit @ '1'..='9') => {
                let number = digit.to_digit(10).unwrap_or_default() as usize;
                self.tab = Tab::ALL.get(number - 1).copied().unwrap_or(self.tab);
            }
            KeyCode::Char('s') => self.sort_by_next(1),
            KeyCode::Char('S') => self.sort_by_next(-1),
            KeyCode::Char('r') => self.change(|view| view.reverse = !view.reverse),
            KeyCode::Down | KeyCode::Char('j') => self.scroll(1),
            KeyCode::Up | KeyCode::Char('k') => self.scroll(-1),
            KeyCode::PageDown => self.scroll(self.page()),
            KeyCode::PageUp => self.scroll(-self.page()),
            KeyCode::Home | KeyCode::Char('g') => self.scroll(isize::MIN),
            KeyCode::End | KeyCode::Char('G') => self.scroll(isize::MAX),
            KeyCode::Char('+') => return self.pace(2.0),
            KeyCode::Char('-') => return self.pace(0.5),
            _ => {}
        }
        Action::Draw
    }

    fn type_filter(&mut self, key: KeyCode) {
        match key {
            KeyCode::Enter => self.is_typing = false,
            KeyCode::Esc => {
                self.is_typing = false;
                self.filter.clear();
            }
            KeyCode::Backspace => _ = self.filter.pop(),
            KeyCode::Char(character) if self.filter.len() < LONGEST_FILTER => {
                self.filter.push(character);
                self.change(|view| view.scrolled = 0);
            }
            _ => {}
        }
    }

    fn mouse(&mut self, mouse: MouseEvent) {
        let at = Position::new(mouse.column, mouse.row);
        match mouse.kind {
            MouseEventKind::ScrollDown => self.scroll(3),
            MouseEventKind::ScrollUp => self.scroll(-3),
            MouseEventKind::Down(MouseButton::Left) => {
                if let Some((_, tab)) = self.drawn.tabs.iter().find(|(place, _)| place.contains(at))
                {
                    self.tab = *tab;
                } else if self.drawn.headings.contains(at) {
                    let cell = usize::from(at.x - self.drawn.headings.x);
                    let hit = |placed: &&Placed| {
                        (placed.left..placed.left + placed.width).contains(&cell)
                    };
                    if let Some(column) = self.drawn.columns.iter().find(hit).map(|hit| hit.column)
                    {
                        self.sort_by(column);
                    }
                }
            }
            _ => {}
        }
    }

    /// Sorts by a column; a second time the other way round.
    fn sort_by(&mut self, column: usize) {
        let own = self.sheet().map(|sheet| sheet.sorted_by);
        self.change(|view| {
            let is_same = view.sorted_by.or(own) == Some(column);
            view.reverse = is_same && !view.reverse;
            view.sorted_by = Some(column);
            view.scrolled = 0;
        });
    }

    fn sort_by_next(&mut self, step: isize) {
        let Some(own) = self.sheet().map(|sheet| sheet.sorted_by) else {
            return;
        };
        let shown: Vec<usize> = self
            .drawn
            .columns
            .iter()
            .map(|placed| placed.column)
            .collect();
        let now = self.view().sorted_by.unwrap_or(own);
        let at = shown
            .iter()
            .position(|column| *column == now)
            .unwrap_or_default();
        let next = (at as isize + step).rem_euclid(shown.len().max(1) as isize) as usize;
        if let Some(next) = shown.get(next).copied() {
            self.change(|view| {
                view.sorted_by = Some(next);
                view.reverse = false;
                view.scrolled = 0;
            });
        }
    }

    fn scroll(&mut self, rows: isize) {
        let last = self.drawn.rows.saturating_sub(self.drawn.height);
        self.change(|view| view.scrolled = view.scrolled.saturating_add_signed(rows).min(last));
    }

    fn page(&self) -> isize {
        isize::try_from(self.drawn.height.max(1)).unwrap_or(1)
    }

    fn change(&mut self, change: impl FnOnce(&mut TableView)) {
        if let Some(view) = self.view_mut() {
            change(view);
        }
    }

    fn pace(&mut self, factor: f64) -> Action {
        let interval = self.interval.mul_f64(factor);
        self.interval = interval.clamp(SHORTEST_INTERVAL, LONGEST_INTERVAL);
        Action::Sample(self.interval)
    }
}

/// The shortest time from sample to sample.
pub(super) const SHORTEST_INTERVAL: Duration = Duration::from_millis(250);
/// The longest: flows are counted for ten seconds after a sample.
pub(super) const LONGEST_INTERVAL: Duration = Duration::from_secs(8);
/// Samples that are kept for the picture of the past.
const HISTORY: usize = 300;
const LONGEST_FILTER: usize = 64;
