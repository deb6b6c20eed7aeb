//! The grammar: `not` binds closest, then `and`, then `or`, unlike tcpdump, where the latter two bind alike; where that
//! would make a difference, parentheses are asked for.

use std::net::IpAddr;

use encap::protocol::{ICMP, ICMPV6, TCP, UDP};
use ipnet::IpNet;

use super::{End, Expression};

/// # Errors
/// A sentence that names what is not understood.
pub(super) fn parse(text: &str) -> Result<Expression, String> {
    let words = words(text);
    if words.is_empty() {
        return Ok(Expression::True);
    }
    if words.len() > MOST_WORDS {
        return Err(format!("it has more than {MOST_WORDS} words"));
    }
    let mut parser = Parser {
        words: &words,
        place: 0,
        depth: 0,
    };
    let expression = parser.alternatives()?;
    match parser.peek() {
        None => Ok(expression),
        Some(")") => Err("a \")\" has no \"(\"".to_owned()),
        Some(word) => Err(format!(
            "{word:?} follows without \"and\" or \"or\" before it"
        )),
    }
}

/// Words, with parentheses and operators apart.
fn words(text: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut characters = text.chars().peekable();
    while let Some(character) = characters.next() {
        let double = match character {
            '&' | '|' => characters.next_if_eq(&character).is_some(),
            _ => false,
        };
        match character {
            '(' | ')' | '!' => words.extend([character.to_string(), String::new()]),
            '&' | '|' if double => {
                words.extend([format!("{character}{character}"), String::new()]);
            }
            space if space.is_whitespace() => words.push(String::new()),
            other => words
                .last_mut()
                .into_iter()
                .for_each(|word| word.push(other)),
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

struct Parser<'a> {
    words: &'a [String],
    place: usize,
    /// Open parentheses and negations.
    depth: usize,
}

impl<'a> Parser<'a> {
    fn peek(&self) -> Option<&'a str> {
        self.words.get(self.place).map(String::as_str)
    }

    fn take(&mut self) -> Option<&'a str> {
        let word = self.peek();
        self.place += 1;
        word
    }

    fn take_if(&mut self, is_it: impl FnOnce(&str) -> bool) -> bool {
        let is_it = self.peek().is_some_and(is_it);
        self.place += usize::from(is_it);
        is_it
    }

    fn alternatives(&mut self) -> Result<Expression, String> {
        let (mut expression, mut has_and) = self.conjunction()?;
        let mut count = 1;
        while self.take_if(|word| matches!(word, "or" | "||")) {
            let (next, next_has_and) = self.conjunction()?;
            has_and |= next_has_and;
            count += 1;
            expression = Expression::Or(Box::new(expression), Box::new(next));
        }
        if count > 1 && has_and {
            return Err("it mixes \"and\" with \"or\": put parentheses around what belongs together (quoted from the shell)".to_owned());
        }
        Ok(expression)
    }

    /// What `and` joins, and whether there was one.
    fn conjunction(&mut self) -> Result<(Expression, bool), String> {
        let mut expression = self.single()?;
        let mut has_and = false;
        while self.take_if(|word| matches!(word, "and" | "&&")) {
            has_and = true;
            let next = self.single()?;
            expression = Expression::And(Box::new(expression), Box::new(next));
        }
        Ok((expression, has_and))
    }

    fn single(&mut self) -> Result<Expression, String> {
        self.depth += 1;
        if self.depth > MOST_DEPTH {
            return Err(format!("it is nested more than {MOST_DEPTH} deep"));
        }
        let expression = match self.peek() {
            None => Err("it ends where something is missing".to_owned()),
            Some("not" | "!") => {
                self.place += 1;
                Ok(Expression::Not(Box::new(self.single()?)))
            }
            Some("(") => {
                self.place += 1;
                let inside = self.alternatives()?;
                if !self.take_if(|word| word == ")") {
                    return Err("a \"(\" has no \")\"".to_owned());
                }
                Ok(inside)
            }
            Some(_) => self.primitive(),
        };
        self.depth -= 1;
        expression
    }

    /// `[ip|ip6|tcp|udp|sctp] [src|dst] [host|net|port|portrange] VALUE`, or one of these protocols alone.
    fn primitive(&mut self) -> Result<Expression, String> {
        let protocol = self.protocol();
        if protocol.is_none() && self.peek() == Some("proto") {
            self.place += 1;
            let number = self.value("proto")?;
            return number
                .parse()
                .map(Expression::Protocol)
                .map_err(|_| format!("{number:?} is no protocol number"));
        }
        for (word, make) in [
            ("less", Expression::AtMost as fn(u64) -> Expression),
            ("greater", Expression::AtLeast),
        ] {
            if protocol.is_none() && self.take_if(|next| next == word) {
                let bytes = self.value(word)?;
                return bytes
                    .parse()
                    .map(make)
                    .map_err(|_| format!("{bytes:?} is no number of bytes"));
            }
        }
        let end = self.end();
        let matched = match (self.peek(), end) {
            (Some("host"), _) => {
                self.place += 1;
                self.address(end)?
            }
            (Some("net"), _) => {
                self.place += 1;
                let text = self.value("net")?;
                let net: Result<IpNet, _> = text.parse();
                let net = net.or_else(|_| text.parse::<IpAddr>().map(IpNet::from));
                let net =
                    net.map_err(|_| format!("{text:?} is no prefix: write it as 10.244.1.0/24"))?;
                Expression::Net(end.unwrap_or(End::Either), net)
            }
            (Some(word @ ("port" | "portrange")), _) => {
                self.place += 1;
                let text = self.value(word)?;
                let (from, to) = text.split_once('-').unwrap_or((text, text));
                let ports = from.parse().ok().zip(to.parse().ok());
                let (from, to) =
                    ports.ok_or_else(|| format!("{text:?} is no port: write its number"))?;
                Expression::Ports(end.unwrap_or(End::Either), from, to)
            }
            (_, Some(_)) => self.address(end)?,
            (_, None) if protocol.is_some() => return Ok(protocol.unwrap_or(Expression::True)),
            (Some(word), None) if word.parse::<IpAddr>().is_ok() => self.address(end)?,
            (word, None) => return Err(unknown(word.unwrap_or_default())),
        };
        Ok(match protocol {
            Some(protocol) => Expression::And(Box::new(protocol), Box::new(matched)),
            None => matched,
        })
    }

    fn protocol(&mut self) -> Option<Expression> {
        let protocol = match self.peek()? {
            "ip" => Expression::Version(4),
            "ip6" => Expression::Version(6),
            "tcp" => Expression::Protocol(TCP),
            "udp" => Expression::Protocol(UDP),
            "icmp" => Expression::Protocol(ICMP),
            "icmp6" => Expression::Protocol(ICMPV6),
            "sctp" => Expression::Protocol(SCTP),
            _ => return None,
        };
        self.place += 1;
        Some(protocol)
    }

    fn end(&mut self) -> Option<End> {
        let end = match self.peek()? {
            "src" => End::Source,
            "dst" => End::Destination,
            _ => return None,
        };
        self.place += 1;
        let joined = match (
            self.peek(),
            self.words.get(self.place + 1).map(String::as_str),
        ) {
            (Some("or"), Some("src" | "dst")) => End::Either,
            (Some("and"), Some("src" | "dst")) => End::Both,
            _ => return Some(end),
        };
        // `src and src` is just that.
        let other = self.words.get(self.place + 1).map(String::as_str);
        let is_same = (other == Some("src")) == (end == End::Source);
        // `src host A and dst host B`: the second has a value of its own, and so has the first; this is `src and dst A`.
        self.place += 2;
        Some(if is_same { end } else { joined })
    }

    fn address(&mut self, end: Option<End>) -> Result<Expression, String> {
        let text = self.value("host")?;
        let address = text.parse().map_err(|_| {
            format!(
                "{text:?} is no address: names are not looked up, `--pod` and `--peer` take them"
            )
        })?;
        Ok(Expression::Host(end.unwrap_or(End::Either), address))
    }

    fn value(&mut self, of: &str) -> Result<&'a str, String> {
        match self.take() {
            None | Some("and" | "or" | "not" | "(" | ")" | "&&" | "||" | "!") => {
                Err(format!("{of:?} has no value"))
            }
            Some(value) => Ok(value),
        }
    }
}

fn unknown(word: &str) -> String {
    let known = "host, net, port, portrange, src, dst, ip, ip6, tcp, udp, icmp, icmp6, sctp, proto, less, greater, and, or, not";
    if word.contains('[') {
        return format!(
            "{word:?} looks into bytes, which is not supported: write a file with --write and filter it with tcpdump -r; understood are {known}"
        );
    }
    format!("{word:?} is not supported; understood are {known}")
}

const SCTP: u8 = 132;
const MOST_WORDS: usize = 1_000;
const MOST_DEPTH: usize = 64;
