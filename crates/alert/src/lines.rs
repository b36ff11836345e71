//! Splits a stream of bytes into lines.

/// Maximum length of a line, bytes. Longer lines are dropped.
pub const LINE_BYTES_MAX: usize = 1 << 20;

/// Splits a stream of bytes into lines. The splitter keeps the first part of a line until the line
/// ends, or until the line is too long.
#[derive(Debug, Default)]
pub struct LineSplitter {
    rest: Vec<u8>,
    /// The bytes up to the next line feed belong to a line that was too long.
    skips: bool,
}

impl LineSplitter {
    /// Adds bytes. `line` gets each line of at most [`LINE_BYTES_MAX`] bytes that these bytes
    /// complete, without its line feed. Returns the number of lines that became longer than this
    /// maximum.
    pub fn push(&mut self, mut bytes: &[u8], mut line: impl FnMut(&[u8])) -> u64 {
        let mut given_up = 0;
        while let Some(end) = memchr::memchr(b'\n', bytes) {
            let (head, behind) = (&bytes[..end], &bytes[end + 1..]);
            bytes = behind;
            if std::mem::take(&mut self.skips) {
                continue;
            }
            if self.rest.len() + head.len() > LINE_BYTES_MAX {
                given_up += 1;
            } else if self.rest.is_empty() {
                line(head);
            } else {
                self.rest.extend_from_slice(head);
                line(&self.rest);
            }
            self.rest.clear();
        }
        if self.skips {
            return given_up;
        }
        if self.rest.len() + bytes.len() > LINE_BYTES_MAX {
            self.skips = true;
            self.rest.clear();
            return given_up + 1;
        }
        self.rest.extend_from_slice(bytes);
        given_up
    }

    /// Ends the stream, and returns the last line if it has no line feed, is not empty and is not
    /// too long. The next bytes begin a line.
    pub fn end(&mut self) -> Option<Vec<u8>> {
        self.skips = false;
        let rest = std::mem::take(&mut self.rest);
        (!rest.is_empty()).then_some(rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(pieces: &[&[u8]]) -> (Vec<Vec<u8>>, u64, Option<Vec<u8>>) {
        let (mut lines, mut all, mut given_up) = (LineSplitter::default(), Vec::new(), 0);
        for piece in pieces {
            given_up += lines.push(piece, |line| all.push(line.to_vec()));
        }
        (all, given_up, lines.end())
    }

    #[test]
    fn however_a_stream_is_cut_its_lines_are_the_same() {
        let mut random = fastrand::Rng::with_seed(20);
        let text: Vec<Vec<u8>> = (0..200)
            .map(|n| vec![b'a' + n % 20; random.usize(..90)])
            .collect();
        let stream = [text.join(&b'\n'), b"\nrest".to_vec()].concat();
        for _ in 0..50 {
            let (mut pieces, mut left) = (Vec::new(), stream.as_slice());
            while !left.is_empty() {
                let (piece, behind) = left.split_at(random.usize(1..=left.len().min(200)));
                pieces.push(piece);
                left = behind;
            }
            let (lines, given_up, rest) = cut(&pieces);
            assert_eq!((lines, given_up), (text.clone(), 0));
            assert_eq!(rest.as_deref(), Some(&b"rest"[..]));
        }
    }

    #[test]
    fn a_line_without_end_is_given_up_and_takes_no_memory() {
        let long = vec![b'x'; LINE_BYTES_MAX / 2 + 1];
        let (lines, given_up, rest) = cut(&[
            &long,
            &long,
            &long,
            b"end\nnext\n",
            &long,
            &long,
            b"\nlast\n",
        ]);
        assert_eq!(lines, [b"next".to_vec(), b"last".to_vec()]);
        assert_eq!((given_up, rest), (2, None));
    }
}
