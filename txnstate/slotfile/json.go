package slotfile

import (
	"bytes"
	"encoding/hex"
	"errors"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// The package reads JSON by position rather than into values: what it does not
// know, and whole entries that it can't read, go back into the file byte for
// byte. The functions here expect input that json.Valid accepts; on other input
// they give an error or nonsense, and do not panic.

var errSyntax = errors.New("not the JSON expected here")

// scanner walks over one JSON document.
type scanner struct {
	b []byte
	i int
}

func (s *scanner) space() {
	for s.i < len(s.b) {
		switch s.b[s.i] {
		case ' ', '\t', '\r', '\n':
			s.i++
		default:
			return
		}
	}
}

// next is the byte after white space, 0 at the end.
func (s *scanner) next() byte {
	s.space()
	if s.i < len(s.b) {
		return s.b[s.i]
	}
	return 0
}

// take passes over c and reports whether it was there.
func (s *scanner) take(c byte) bool {
	if s.next() != c {
		return false
	}
	s.i++
	return true
}

// value passes over one value and returns its bytes. It does not recurse, so
// that depth costs no stack.
func (s *scanner) value() ([]byte, error) {
	s.space()
	from, depth := s.i, 0
	for s.i < len(s.b) {
		switch s.b[s.i] {
		case '"':
			if err := s.str(); err != nil {
				return nil, err
			}
		case '{', '[':
			depth++
			s.i++
			continue
		case '}', ']':
			if depth == 0 {
				return nil, errSyntax
			}
			depth--
			s.i++
		case ' ', '\t', '\r', '\n', ',', ':':
			if depth == 0 {
				return nil, errSyntax
			}
			s.i++
			continue
		default:
			for s.i < len(s.b) && strings.IndexByte(" \t\r\n,:{}[]\"", s.b[s.i]) < 0 {
				s.i++
			}
		}
		if depth == 0 {
			return s.b[from:s.i], nil
		}
	}
	return nil, errSyntax
}

// str passes over a string.
func (s *scanner) str() error {
	for s.i++; s.i < len(s.b); s.i++ {
		switch s.b[s.i] {
		case '\\':
			s.i++
		case '"':
			s.i++
			return nil
		}
	}
	return errSyntax
}

// members calls f for each member of the object that comes next: its key in
// quotes, its value, and both with what is between them.
func (s *scanner) members(f func(key, value, member []byte) error) error {
	return s.list('{', '}', func() error {
		if s.next() != '"' {
			return errSyntax
		}
		from := s.i
		if err := s.str(); err != nil {
			return err
		}
		key := s.b[from:s.i]
		if !s.take(':') {
			return errSyntax
		}
		value, err := s.value()
		if err != nil {
			return err
		}
		return f(key, value, s.b[from:s.i])
	})
}

// elements calls f for each element of the array that comes next.
func (s *scanner) elements(f func(value []byte) error) error {
	return s.list('[', ']', func() error {
		value, err := s.value()
		if err != nil {
			return err
		}
		return f(value)
	})
}

func (s *scanner) list(first, last byte, one func() error) error {
	if !s.take(first) {
		return errSyntax
	}
	if s.take(last) {
		return nil
	}
	for {
		if err := one(); err != nil {
			return err
		}
		if s.take(last) {
			return nil
		}
		if !s.take(',') {
			return errSyntax
		}
	}
}

// object calls f for each member of b, which is one object and nothing more.
func object(b []byte, f func(key, value, member []byte) error) error {
	s := scanner{b: b}
	if err := s.members(f); err != nil {
		return err
	}
	if s.next(); s.i != len(s.b) {
		return errSyntax
	}
	return nil
}

func array(b []byte, f func(value []byte) error) error {
	s := scanner{b: b}
	return s.elements(f)
}

// rawPrefix marks a string of the file that stands for bytes which are not
// UTF-8: their hexadecimal digits follow. A string that begins with the prefix
// itself is written the same way, so that no two strings share a spelling.
const rawPrefix = "\x00hex:"

func needsRaw(s string) bool { return !utf8.ValidString(s) || strings.HasPrefix(s, rawPrefix) }

// appendText appends s as a JSON string.
func appendText(b []byte, s string) []byte {
	if needsRaw(s) {
		b = append(b, `"\u0000hex:`...)
		b = hex.AppendEncode(b, []byte(s))
		return append(b, '"')
	}
	b = append(b, '"')
	for i := range len(s) {
		switch c := s[i]; {
		case c == '"' || c == '\\':
			b = append(b, '\\', c)
		case c == '\n':
			b = append(b, '\\', 'n')
		case c < 0x20 || c == 0x7f:
			const digits = "0123456789abcdef"
			b = append(b, '\\', 'u', '0', '0', digits[c>>4], digits[c&15])
		default:
			b = append(b, c)
		}
	}
	return append(b, '"')
}

// text is the string that a JSON string of the file stands for. It is stricter
// than encoding/json, which would put U+FFFD in place of what is no character
// and make one id of two.
func text(quoted []byte) (string, error) {
	s, err := unquote(quoted)
	if err != nil {
		return "", err
	}
	digits, raw := strings.CutPrefix(s, rawPrefix)
	if !raw {
		return s, nil
	}
	b, err := hex.DecodeString(digits)
	if err != nil {
		return "", err
	}
	if s = string(b); !needsRaw(s) || hex.EncodeToString(b) != digits {
		return "", errors.New("a string that has another spelling")
	}
	return s, nil
}

func unquote(q []byte) (string, error) {
	if len(q) < 2 || q[0] != '"' || q[len(q)-1] != '"' {
		return "", errors.New("not a string")
	}
	q = q[1 : len(q)-1]
	if !utf8.Valid(q) {
		return "", errors.New("a string that is not UTF-8")
	}
	if bytes.IndexByte(q, '\\') < 0 {
		return string(q), nil
	}
	var b strings.Builder
	for i := 0; i < len(q); i++ {
		if q[i] != '\\' {
			b.WriteByte(q[i])
			continue
		}
		if i++; i == len(q) {
			return "", errSyntax
		}
		switch c := q[i]; c {
		case '"', '\\', '/':
			b.WriteByte(c)
		case 'b':
			b.WriteByte('\b')
		case 'f':
			b.WriteByte('\f')
		case 'n':
			b.WriteByte('\n')
		case 'r':
			b.WriteByte('\r')
		case 't':
			b.WriteByte('\t')
		case 'u':
			r, ok := unit(q[i+1:])
			if !ok {
				return "", errSyntax
			}
			i += 4
			if utf16.IsSurrogate(r) {
				if len(q) < i+7 || q[i+1] != '\\' || q[i+2] != 'u' {
					return "", errors.New("half a surrogate pair")
				}
				low, ok := unit(q[i+3:])
				if r = utf16.DecodeRune(r, low); !ok || r == utf8.RuneError {
					return "", errors.New("half a surrogate pair")
				}
				i += 6
			}
			b.WriteRune(r)
		default:
			return "", errSyntax
		}
	}
	return b.String(), nil
}

// unit reads four hexadecimal digits.
func unit(b []byte) (rune, bool) {
	if len(b) < 4 {
		return 0, false
	}
	n, err := strconv.ParseUint(string(b[:4]), 16, 16)
	return rune(n), err == nil
}

// number reads an integer of so many bits. Fractions, exponents and what does
// not fit are errors: a value that was rounded is not the value stored.
func number(b []byte, bits int) (int64, error) {
	n, err := strconv.ParseInt(string(b), 10, bits)
	if err != nil {
		return 0, errors.New("not an integer of the size expected: " + brief(b))
	}
	return n, nil
}

func natural(b []byte) (uint64, error) {
	n, err := strconv.ParseUint(string(b), 10, 64)
	if err != nil {
		return 0, errors.New("not a natural number of 64 bits: " + brief(b))
	}
	return n, nil
}

// brief keeps what is quoted from a file short.
func brief(b []byte) string {
	if len(b) > 40 {
		return strconv.Quote(string(b[:40])) + "..."
	}
	return strconv.Quote(string(b))
}

func isNull(b []byte) bool { return string(b) == "null" }
