//! The terminal while `tartan top` draws on it: raw, on its second screen, with the mouse. Whatever ends the program, the
//! terminal is as it was before: at its return, at a panic, and at SIGINT, SIGTERM, SIGHUP and SIGQUIT.

use std::io::{self, Stdout, stdout};
use std::panic;
use std::sync::Once;
use std::sync::mpsc::Sender;
use std::thread;

use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::Show;
use ratatui::crossterm::event::{self, DisableMouseCapture, EnableMouseCapture};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};

use super::Incoming;

/// A terminal that is drawn on. Dropping it gives it back.
pub(super) struct Drawn {
    /// To draw on.
    pub(super) terminal: Terminal<CrosstermBackend<Stdout>>,
}

impl Drawn {
    /// Takes the terminal.
    pub(super) fn take() -> io::Result<Drawn> {
        restore_at_panic();
        enable_raw_mode()?;
        // From here on dropping it gives back what was taken.
        let taken = Drawn {
            terminal: Terminal::new(CrosstermBackend::new(stdout()))?,
        };
        execute!(stdout(), EnterAlternateScreen, EnableMouseCapture)?;
        Ok(taken)
    }
}

impl Drop for Drawn {
    fn drop(&mut self) {
        restore();
    }
}

/// Gives the terminal back. What fails because the terminal is gone needs nothing.
fn restore() {
    let _ = execute!(stdout(), DisableMouseCapture, LeaveAlternateScreen, Show);
    let _ = disable_raw_mode();
}

/// A panic aborts the process: the terminal is given back before the message is printed.
fn restore_at_panic() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |panic| {
            restore();
            before(panic);
        }));
    });
}

/// Passes keys, the mouse and new sizes on to `to`, and its end when the terminal is gone.
pub(super) fn pass_events(to: Sender<Incoming>) -> io::Result<()> {
    let run = move || {
        while let Ok(event) = event::read() {
            if to.send(Incoming::Event(event)).is_err() {
                return;
            }
        }
        let _ = to.send(Incoming::End);
    };
    thread::Builder::new().name("keys".to_owned()).spawn(run)?;
    Ok(())
}

/// Passes the signals that ask the program to end on to `to`.
pub(super) fn pass_signals(to: Sender<Incoming>) -> io::Result<()> {
    let runtime = Builder::new_current_thread().enable_io().build()?;
    // Their handlers are there before the terminal is taken.
    let signals = runtime.block_on(async {
        io::Result::Ok((
            signal(SignalKind::interrupt())?,
            signal(SignalKind::terminate())?,
            signal(SignalKind::hangup())?,
            signal(SignalKind::quit())?,
        ))
    });
    let (mut interrupt, mut terminate, mut hangup, mut quit) = signals?;
    let run = move || {
        runtime.block_on(async {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
                _ = hangup.recv() => {}
                _ = quit.recv() => {}
            }
        });
        let _ = to.send(Incoming::End);
    };
    thread::Builder::new()
        .name("signals".to_owned())
        .spawn(run)?;
    Ok(())
}
