package main

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// mutant is one change of one file: the bytes from..to are replaced.
type mutant struct {
	file     string // from the module's root
	line     int
	kind     string
	was, new string
	from, to int
	source   []byte
	sum      string // of source
}

func (m mutant) String() string {
	return fmt.Sprintf("%s:%d: %s: %s  =>  %s", m.file, m.line, m.kind, brief(m.was), brief(m.new))
}

func brief(s string) string {
	s = strings.Join(strings.Fields(s), " ")
	if len(s) > 90 {
		s = s[:90] + "..."
	}
	return s
}

// key tells the mutant from all others, also of other versions of its file.
func (m mutant) key() string {
	return fmt.Sprintf("%s %s %d-%d %q", m.file, m.sum, m.from, m.to, m.new)
}

func (m mutant) text() []byte {
	return bytes.Join([][]byte{m.source[:m.from], []byte(m.new), m.source[m.to:]}, nil)
}

// mutants are the changes of a file, in the order of its text.
func mutants(root, file string) ([]mutant, error) {
	source, err := os.ReadFile(filepath.Join(root, file))
	if err != nil {
		return nil, err
	}
	return mutantsOf(file, source)
}

func mutantsOf(file string, source []byte) ([]mutant, error) {
	fset := token.NewFileSet()
	tree, err := parser.ParseFile(fset, file, source, 0)
	if err != nil {
		return nil, err
	}
	c := &collector{fset: fset, file: file, source: source, sum: fmt.Sprintf("%x", sha256.Sum256(source))[:12]}
	for _, d := range tree.Decls {
		if f, ok := d.(*ast.FuncDecl); ok && f.Body != nil {
			ast.Inspect(f.Body, c.node)
		}
	}
	return c.out, nil
}

type collector struct {
	fset   *token.FileSet
	file   string
	source []byte
	sum    string
	out    []mutant
}

func (c *collector) text(n ast.Node) string {
	return string(c.source[c.fset.Position(n.Pos()).Offset:c.fset.Position(n.End()).Offset])
}

func (c *collector) replace(kind string, n ast.Node, with string) {
	c.replaceAt(kind, n.Pos(), n.End(), with)
}

func (c *collector) replaceAt(kind string, from, to token.Pos, with string) {
	a, b := c.fset.Position(from), c.fset.Position(to)
	c.out = append(c.out, mutant{
		file: c.file, line: a.Line, kind: kind, was: string(c.source[a.Offset:b.Offset]), new: with,
		from: a.Offset, to: b.Offset, source: c.source, sum: c.sum,
	})
}

// comparisons are moved by one step, or turned round.
var comparisons = map[token.Token][]string{
	token.EQL: {"!="}, token.NEQ: {"=="},
	token.LSS: {"<=", ">="}, token.LEQ: {"<", ">"}, token.GTR: {">=", "<="}, token.GEQ: {">", "<"},
}

var others = map[token.Token]string{
	token.LAND: "||", token.LOR: "&&", token.ADD: "-", token.SUB: "+", token.MUL: "/", token.QUO: "*",
}

func (c *collector) node(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.BinaryExpr:
		end := n.OpPos + token.Pos(len(n.Op.String()))
		for _, op := range comparisons[n.Op] {
			c.replaceAt("comparison", n.OpPos, end, op)
		}
		if op := others[n.Op]; op != "" {
			c.replaceAt("operator", n.OpPos, end, op)
		}
	case *ast.IfStmt:
		c.condition(n.Cond)
	case *ast.CaseClause:
		for _, e := range n.List {
			if isCondition(e) {
				c.condition(e)
			}
		}
	case *ast.UnaryExpr:
		if n.Op == token.NOT {
			c.replace("negation", n, c.text(n.X))
		}
	case *ast.BasicLit:
		if v, err := strconv.ParseInt(n.Value, 0, 64); n.Kind == token.INT && err == nil {
			c.replace("constant", n, strconv.FormatInt(v+1, 10))
			if v > 0 {
				c.replace("constant", n, strconv.FormatInt(v-1, 10))
			}
		}
	case *ast.Ident:
		switch n.Name {
		case "true":
			c.replace("constant", n, "false")
		case "false":
			c.replace("constant", n, "true")
		case "min":
			c.replace("operator", n, "max")
		case "max":
			c.replace("operator", n, "min")
		}
		if strings.HasPrefix(n.Name, "Code") && len(n.Name) > len("Code") && !strings.HasPrefix(n.Name, "CodeOf") {
			other := "CodeUnknownServerError"
			if n.Name == other {
				other = "CodeInvalidRequest"
			}
			c.replace("code", n, other)
		}
	case *ast.ExprStmt, *ast.DeferStmt:
		c.replace("statement", n, "{}")
	case *ast.IncDecStmt:
		op := map[token.Token]string{token.INC: "--", token.DEC: "++"}[n.Tok]
		c.replaceAt("operator", n.TokPos, n.End(), op)
	case *ast.AssignStmt:
		if n.Tok != token.DEFINE && len(n.Lhs) == len(n.Rhs) {
			blank := strings.Repeat("_, ", len(n.Lhs)-1) + "_ = "
			c.replaceAt("statement", n.Lhs[0].Pos(), n.Rhs[0].Pos(), blank)
		}
	case *ast.BranchStmt:
		switch n.Tok {
		case token.BREAK:
			c.replaceAt("branch", n.Pos(), n.Pos()+token.Pos(len("break")), "continue")
		case token.CONTINUE:
			c.replaceAt("branch", n.Pos(), n.Pos()+token.Pos(len("continue")), "break")
		}
	}
	return true
}

// condition is made to hold always, and never.
func (c *collector) condition(e ast.Expr) {
	c.replace("condition", e, "true || ("+c.text(e)+")")
	c.replace("condition", e, "false && ("+c.text(e)+")")
}

// isCondition tells the cases of a switch without a tag, as far as can be seen
// without types. What is wrong about it does not compile.
func isCondition(e ast.Expr) bool {
	switch e := e.(type) {
	case *ast.BinaryExpr:
		return e.Op == token.LAND || e.Op == token.LOR || comparisons[e.Op] != nil
	case *ast.UnaryExpr:
		return e.Op == token.NOT
	case *ast.CallExpr:
		return true
	case *ast.ParenExpr:
		return isCondition(e.X)
	}
	return false
}
