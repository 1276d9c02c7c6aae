//! Where an image is or may be, and whether a pattern means it: host, port and path, with wildcards in the
//! parts of the host.

/// `host[:port][/path]`, without a scheme.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    /// With its port, as written.
    pub authority: String,
    pub path: String,
}

/// Why a text is no location.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LocationError {
    #[error("invalid character {0:?} in host name")]
    Host(char),
    #[error("invalid port {0:?} after host")]
    Port(String),
    #[error("missing ']' in host")]
    Bracket,
    #[error("invalid URL escape")]
    Escape,
    #[error("invalid control character in URL")]
    Control,
}

impl Location {
    pub fn parse(text: &str) -> Result<Self, LocationError> {
        if text.chars().any(|c| c.is_ascii_control()) {
            return Err(LocationError::Control);
        }
        let text = text.split('#').next().unwrap_or_default();
        let text = text.split('?').next().unwrap_or_default();
        let at = text.find('/').unwrap_or(text.len());
        let (authority, path) = text.split_at(at);
        let authority = authority.rsplit('@').next().unwrap_or_default();
        check_host(authority)?;
        Ok(Self {
            authority: authority.to_owned(),
            path: unescape(path)?,
        })
    }

    /// The parts of the host, and the port.
    fn host_and_port(&self) -> (Vec<&str>, &str) {
        let (host, port) = match self.authority.rsplit_once(':') {
            Some((host, port)) if !host.contains(':') || host.ends_with(']') => (host, port),
            _ => (self.authority.as_str(), ""),
        };
        // Brackets would be a pattern's.
        let bare = host.strip_prefix('[').and_then(|h| h.strip_suffix(']'));
        (bare.unwrap_or(host).split('.').collect(), port)
    }

    /// Whether this, as a pattern, means the target: the same port, as many parts of the host of which each
    /// matches, and a path the target's begins with.
    pub fn means(&self, target: &Location) -> bool {
        let (globs, glob_port) = self.host_and_port();
        let (parts, port) = target.host_and_port();
        glob_port == port
            && globs.len() == parts.len()
            && target.path.starts_with(&self.path)
            && globs.iter().zip(&parts).all(|(g, p)| glob_matches(g, p))
    }
}

/// Whether a pattern means an image; one that cannot be read means none.
pub fn pattern_means(pattern: &str, image: &str) -> bool {
    match (Location::parse(pattern), Location::parse(image)) {
        (Ok(pattern), Ok(image)) => pattern.means(&image),
        _ => false,
    }
}

fn check_host(authority: &str) -> Result<(), LocationError> {
    let allowed = |c: char| c.is_alphanumeric() || "!$&'()*+,;=:[]<>\"-_.~".contains(c);
    if let Some(bad) = authority.chars().find(|c| c.is_ascii() && !allowed(*c)) {
        return Err(LocationError::Host(bad));
    }
    let after_host = match authority.starts_with('[') {
        true => {
            let end = authority.rfind(']').ok_or(LocationError::Bracket)?;
            authority.get(end + 1..).unwrap_or_default()
        }
        false => authority.rfind(':').map_or("", |at| {
            // From the colon on.
            authority.get(at..).unwrap_or_default()
        }),
    };
    let valid = match after_host.strip_prefix(':') {
        Some(port) => port.bytes().all(|b| b.is_ascii_digit()),
        None => after_host.is_empty(),
    };
    match valid {
        true => Ok(()),
        false => Err(LocationError::Port(after_host.to_owned())),
    }
}

fn unescape(path: &str) -> Result<String, LocationError> {
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        rest = tail;
        if first != b'%' {
            bytes.push(first);
            continue;
        }
        let digits = tail.get(..2).and_then(|d| std::str::from_utf8(d).ok());
        let byte = digits.filter(|d| d.bytes().all(|b| b.is_ascii_hexdigit()));
        let byte = byte.and_then(|d| u8::from_str_radix(d, 16).ok());
        bytes.push(byte.ok_or(LocationError::Escape)?);
        rest = tail.get(2..).unwrap_or_default();
    }
    String::from_utf8(bytes).map_err(|_| LocationError::Escape)
}

/// A shell pattern over one part of a host: `*`, `?`, `[a-z]`, `\x`.
fn glob_matches(pattern: &str, text: &str) -> bool {
    let pattern: Vec<char> = pattern.chars().collect();
    let text: Vec<char> = text.chars().collect();
    let (mut p, mut t) = (0, 0);
    // Where the last star was, and how much of the text it has taken so far.
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() || p < pattern.len() {
        let step = match pattern.get(p) {
            Some('*') => {
                star = Some((p, t));
                p += 1;
                continue;
            }
            Some(_) => text
                .get(t)
                .and_then(|c| match_one(pattern.get(p..).unwrap_or_default(), *c)),
            None => None,
        };
        if let Some(length) = step {
            p += length;
            t += 1;
        } else if let Some((at, taken)) = star.filter(|(_, taken)| *taken < text.len()) {
            star = Some((at, taken + 1));
            p = at + 1;
            t = taken + 1;
        } else {
            return false;
        }
    }
    true
}

/// The length of the pattern's first element, if the character fits it.
fn match_one(pattern: &[char], c: char) -> Option<usize> {
    match pattern {
        ['?', ..] => Some(1),
        ['\\', escaped, ..] => (*escaped == c).then_some(2),
        ['[', class @ ..] => {
            let (negated, ranges) = match class {
                ['^', rest @ ..] => (true, rest),
                rest => (false, rest),
            };
            let end = ranges.iter().position(|c| *c == ']').filter(|e| *e > 0)?;
            let fits = in_class(ranges.get(..end)?, c);
            (fits != negated).then_some(end + 2 + usize::from(negated))
        }
        [literal, ..] => (*literal == c).then_some(1),
        [] => None,
    }
}

fn in_class(mut ranges: &[char], c: char) -> bool {
    while let [low, rest @ ..] = ranges {
        let (high, rest) = match rest {
            ['-', high, rest @ ..] => (high, rest),
            rest => (low, rest),
        };
        if (*low..=*high).contains(&c) {
            return true;
        }
        ranges = rest;
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns() {
        let cases = [
            ("r.io", "r.io/a", true),
            ("r.io", "r.io:5000/a", false),
            ("r.io:5000", "r.io:5000/a", true),
            ("*.r.io", "x.r.io/a", true),
            ("*.r.io", "x.y.r.io/a", false),
            ("*.r.io", "r.io/a", false),
            ("*.*.r.io", "x.y.r.io", true),
            ("pre*.r.io", "prefix.r.io", true),
            ("*-x-*.io", "a-x-b-x-c.io", true),
            ("k8s.*", "k8s.io", true),
            ("*", "localhost", true),
            ("*", "r.io", false),
            ("r.io/a", "r.io/a/b", true),
            ("r.io/a", "r.io/ab", true),
            ("r.io/a/b", "r.io/a", false),
            ("r.io/*", "r.io/a", false),
            ("127.0.0.1:5000", "127.0.0.1:5000/a", true),
            ("127.0.*.*:5000", "127.0.0.1:5000/a", true),
            ("[fd00::1]:5000", "[fd00::1]:5000/a", true),
            ("[fd00::1]", "[fd00::1]/a", true),
            ("x[a-c].io", "xb.io", true),
            ("x[^a-c].io", "xb.io", false),
            ("r.io:*", "r.io:5000", false),
            ("r.io:x", "r.io:x", false),
            ("r io", "r io", false),
        ];
        for (pattern, image, expected) in cases {
            assert_eq!(pattern_means(pattern, image), expected, "{pattern} {image}");
        }
    }

    #[test]
    fn what_is_no_location() {
        use LocationError as E;
        let cases = [
            ("a b", E::Host(' ')),
            ("a\n", E::Control),
            ("r.io:x", E::Port(":x".into())),
            ("[fd00::1", E::Bracket),
            ("[fd00::1]x", E::Port("x".into())),
            ("r.io/%zz", E::Escape),
        ];
        for (text, expected) in cases {
            assert_eq!(Location::parse(text), Err(expected), "{text:?}");
        }
        assert_eq!(Location::parse("r.io/%61").map(|l| l.path), Ok("/a".into()));
    }
}
