// Command optionsdoc writes docs/options.md from the comments of the fields of all option structs. Run it by go generate in the root of
// the module.
package main

import (
	"errors"
	"fmt"
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"io/fs"
	"log"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

const preface = `# Options

<!-- go generate writes this page from the comments in the code. -->

Nil options, and the zero value of each field, mean the defaults. A value out of range is rejected with ` + "`ErrInvalid`" + `;
nothing is clamped. Durations are whole milliseconds; a fraction is dropped. [Adapters](../contrib/README.md)
and the calls of package [admin](../admin) document their own.

Bounds of arguments: a name has 1 to 1024 bytes. A limit of permits is from 1 to 1,000,000,000.
The window of a rate limit is from 10 ms to 365 days (from 200 ms with ` + "`Ahead`" + `), a fraction of a millisecond is
rounded up, and a ` + "`Pause`" + ` lasts from 1 ms to 24 h. The period of ` + "`once`" + ` is from its TTL to 365 days.
`

// skipped are the directories without options of users; contrib, whose modules have pages of their own; and admin, whose options are
// those of calls, next to which their documentation shows them.
var skipped = []string{"admin", "bench", "cmd", "contrib", "examples", "internal", "proptest", "testdata", "tools"}

func main() {
	page, err := generate(".")
	if err == nil {
		err = os.WriteFile("docs/options.md", []byte(page), 0o644)
	}
	if err != nil {
		log.Fatal(err)
	}
}

// generate returns the page for the packages below root.
func generate(root string) (string, error) {
	p := page{seen: map[row]string{}}
	err := filepath.WalkDir(root, func(dir string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return err
		}
		if name := d.Name(); dir != root && (strings.HasPrefix(name, ".") || slices.Contains(skipped, name)) {
			return fs.SkipDir
		}
		rel, err := filepath.Rel(root, dir)
		if err != nil {
			return err
		}
		return p.add(dir, path.Join("lockkeeper", filepath.ToSlash(rel)))
	})
	return preface + p.text.String(), err
}

// row is a field with the first paragraph of its comment.
type row struct{ field, text string }

// key is the row without the name of the struct.
func (r row) key() row {
	return row{strings.Trim(r.field[strings.LastIndex(r.field, ".")+1:], "`"), r.text}
}

type page struct {
	text strings.Builder
	seen map[row]string // the heading under which a row was written, by its key
}

// add writes the table of the package in a directory, if it has options.
func (p *page) add(dir, importPath string) error {
	fset := token.NewFileSet()
	names, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil || len(names) == 0 {
		return err
	}
	var files []*ast.File
	for _, name := range names {
		if f, err := parser.ParseFile(fset, name, nil, parser.ParseComments); err != nil {
			return err
		} else if !strings.HasSuffix(name, "_test.go") {
			files = append(files, f)
		}
	}
	d, err := doc.NewFromFiles(fset, files, importPath)
	if err != nil {
		return err
	}
	t := table{Package: d}
	for _, typ := range d.Types {
		switch {
		case typ.Name == "Options":
			t.fields(typ, "")
		case strings.HasSuffix(typ.Name, "Options"):
			t.fields(typ, typ.Name+".")
		case typ.Name == "Option":
			for _, f := range typ.Funcs {
				t.add("`"+f.Name+"`", f.Doc)
			}
		}
	}
	if len(t.rows) > 0 {
		p.write(strings.TrimPrefix(importPath, "lockkeeper/"), t.rows)
	}
	return errors.Join(t.errs...)
}

// write writes the table of a package. Rows that an earlier table has with the same text refer to it.
func (p *page) write(heading string, rows []row) {
	fmt.Fprintf(&p.text, "\n## %s\n\n| option | description |\n|---|---|\n", heading)
	for i := 0; i < len(rows); i++ {
		names, earlier := rows[i].field, p.seen[rows[i].key()]
		if earlier == "" {
			p.seen[rows[i].key()] = heading
			fmt.Fprintf(&p.text, "| %s | %s |\n", names, rows[i].text)
			continue
		}
		for ; i+1 < len(rows) && p.seen[rows[i+1].key()] == earlier; i++ {
			names += ", " + rows[i+1].field
		}
		fmt.Fprintf(&p.text, "| %s | as in [%s](#%s) |\n", names, earlier, strings.ReplaceAll(earlier, "/", ""))
	}
}

// table is that of a package.
type table struct {
	*doc.Package
	rows []row
	errs []error
}

// fields adds a row for each field of a struct, and of the structs of the same package that are its fields. Hooks have a page of their
// own.
func (t *table) fields(typ *doc.Type, prefix string) {
	for _, f := range typ.Decl.Specs[0].(*ast.TypeSpec).Type.(*ast.StructType).Fields.List {
		var names []string
		for _, name := range f.Names {
			names = append(names, "`"+prefix+name.Name+"`")
		}
		t.add(strings.Join(names, ", "), f.Doc.Text())
		if id, ok := f.Type.(*ast.Ident); ok && id.Name != "Hooks" {
			for _, inner := range t.Types {
				if inner.Name == id.Name {
					t.fields(inner, prefix+f.Names[0].Name+".")
				}
			}
		}
	}
}

// Patterns in comments: the name of the field at the beginning, a section of the package comment, a link.
var (
	start   = regexp.MustCompile(`^([A-Z]\w*)( and [A-Z]\w*)?( is| are)? `)
	section = regexp.MustCompile(`"([^"]+)" in the package comment`)
	link    = regexp.MustCompile(`\[(\*?\w[\w./]*)\]`)
)

// add adds a row with the first paragraph of a comment as one line of Markdown, without the name at its beginning.
func (t *table) add(field, comment string) {
	if comment == "" {
		t.errs = append(t.errs, fmt.Errorf("package %s: %s has no comment above it", t.Name, field))
	}
	first, _, _ := strings.Cut(comment, "\n\n")
	text := start.ReplaceAllString(strings.Join(strings.Fields(first), " "), "")
	text = strings.NewReplacer(" ([lockkeeper.DefaultTTL])", "", " Default false.", "", " Default: none.", "", "|", `\|`, "*", `\*`).Replace(text)
	text = link.ReplaceAllString(text, "`$1`")
	text = section.ReplaceAllStringFunc(text, func(match string) string {
		title := section.FindStringSubmatch(match)[1]
		if !strings.Contains(t.Doc, "\n# "+title+"\n") {
			t.errs = append(t.errs, fmt.Errorf("the comment of package %s has no section %q", t.Name, title))
		}
		return fmt.Sprintf("[%s](https://pkg.go.dev/github.com/lockkeeper/%s#hdr-%s)", title, t.ImportPath, strings.ReplaceAll(title, " ", "_"))
	})
	t.rows = append(t.rows, row{field, text})
}
