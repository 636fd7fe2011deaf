package inspector

import (
	"cmp"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/admin"
	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/lua"
)

const (
	namesPerPage = 200

	// patience is how long a page waits for its first look. A page that is shown without one is updated when it ends.
	patience = 3 * time.Second
)

// column is a column of the list. Its field in the URL is the name by which the list is sorted.
type column struct {
	field, label string
	number       bool // it is aligned at the right, and sorted from the largest number on
	wide         bool // not shown on narrow screens
	compare      func(a, b admin.LockSummary) int
}

// The list is sorted by waiters unless another order is asked for: what somebody waits for is what people look for.
const defaultSort = 5 // of columns

var columns = []column{
	{"name", "Name", false, false, func(a, b admin.LockSummary) int { return cmp.Compare(a.Name, b.Name) }},
	{"owner", "Owner", false, true, func(a, b admin.LockSummary) int { return cmp.Compare(a.Owner, b.Owner) }},
	{"kind", "Kind", false, true, func(a, b admin.LockSummary) int { return cmp.Compare(a.Kind, b.Kind) }},
	{"holders", "Holders", true, false, func(a, b admin.LockSummary) int { return cmp.Compare(a.Holders, b.Holders) }},
	{"expires", "Expires in", true, true, func(a, b admin.LockSummary) int { return cmp.Compare(expiryOrder(a), expiryOrder(b)) }},
	{"waiters", "Waiters", true, false, func(a, b admin.LockSummary) int {
		return cmp.Or(cmp.Compare(a.Waiters, b.Waiters), cmp.Compare(a.LongestWait, b.LongestWait), cmp.Compare(a.Holders, b.Holders))
	}},
	{"wait", "Longest wait", true, true, func(a, b admin.LockSummary) int { return cmp.Compare(a.LongestWait, b.LongestWait) }},
}

// expiryOrder puts leases that never expire last.
func expiryOrder(e admin.LockSummary) time.Duration {
	if e.ExpiresIn < 0 {
		return math.MaxInt64
	}
	return e.ExpiresIn
}

// listQuery is what the list shows.
type listQuery struct {
	Search, Kind string
	sort         int // of columns
	reverse      bool
	page         int // from 1
}

// Kinds are the kinds of locks, for the filter. A redlock is a mutex to each of its servers.
func (listQuery) Kinds() []string {
	var kinds []string
	for _, set := range lua.All {
		if set != lua.Redlock {
			kinds = append(kinds, set.Kind)
		}
	}
	slices.Sort(kinds)
	return kinds
}

// Field is the name of the column by which the list is sorted.
func (q listQuery) Field() string { return columns[q.sort].field }

// Reverse is for the form.
func (q listQuery) Reverse() bool { return q.reverse }

func parseListQuery(v url.Values) (listQuery, error) {
	q := listQuery{Search: v.Get("q"), Kind: v.Get("kind"), sort: defaultSort, page: 1, reverse: v.Get("reverse") != ""}
	if q.Kind != "" && !slices.Contains(q.Kinds(), q.Kind) {
		return q, badRequest("there is no kind %q; kinds are %s", q.Kind, strings.Join(q.Kinds(), ", "))
	}
	if len(q.Search) > 1024 {
		return q, badRequest("the search has %d bytes, the maximum is 1024", len(q.Search))
	}
	if field := v.Get("sort"); field != "" {
		q.sort = slices.IndexFunc(columns, func(c column) bool { return c.field == field })
		if q.sort < 0 {
			return q, badRequest("there is no column %q", field)
		}
	}
	var err error
	q.page, err = pageNumber(v, "page")
	return q, err
}

// pageNumber returns the number of a page, from 1 on.
func pageNumber(v url.Values, field string) (int, error) {
	s := v.Get(field)
	if s == "" {
		return 1, nil
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 {
		return 1, badRequest("%s %q is not the number of a page", field, s)
	}
	return n, nil
}

// values is the query's URL. Defaults are left out.
func (q listQuery) values() url.Values {
	v := url.Values{}
	if q.Search != "" {
		v.Set("q", q.Search)
	}
	if q.Kind != "" {
		v.Set("kind", q.Kind)
	}
	if q.sort != defaultSort {
		v.Set("sort", columns[q.sort].field)
	}
	if q.reverse {
		v.Set("reverse", "1")
	}
	if q.page != 1 {
		v.Set("page", strconv.Itoa(q.page))
	}
	return v
}

func (q listQuery) url() string { return "./?" + q.values().Encode() }

func (q listQuery) events() string {
	v := q.values()
	v.Set("of", "list")
	return "events?" + v.Encode()
}

// pattern is what must be read at the server for the query, if not everything could be read.
func (q listQuery) pattern(all state[listing]) string {
	if !all.value.more {
		return ""
	}
	return patternOf(q.Search)
}

// selected returns the entries that the query asks for, in its order.
func (q listQuery) selected(entries []admin.LockSummary) []admin.LockSummary {
	var list []admin.LockSummary
	pattern := patternOf(q.Search)
	for _, e := range entries {
		if (q.Kind == "" || string(e.Kind) == q.Kind) && (pattern == "" || protocol.MatchGlob(pattern, e.Name)) {
			list = append(list, e)
		}
	}
	c := columns[q.sort]
	slices.SortFunc(list, func(a, b admin.LockSummary) int {
		order := c.compare(a, b)
		if c.number != q.reverse { // numbers from the largest one on
			order = -order
		}
		return cmp.Or(order, cmp.Compare(a.Name, b.Name), cmp.Compare(a.Kind, b.Kind))
	})
	return list
}

// listView is the data of the list's page.
type listView struct {
	frame
	Query listQuery
	Seen  seen
	Total int
	Found int
	More  bool // there are more names than were read
	One   bool // the names are of one node of a Cluster
	Held  int  // of those found
	Waits int

	Process lockkeeper.Stats
	Silence string // of the server towards this process; "" if there is none

	Columns []columnView
	Rows    []rowView
	Pager   pager
}

type columnView struct {
	Field, Label, URL string
	Order             string // the ARIA attribute; "" if the list is not sorted by this column
	Number, Wide      bool
}

type rowView struct {
	ID, URL          string
	Name             text
	FullName         string // if Name is shortened
	Kind             lockkeeper.Kind
	Holders, Waiters int
	Expires, Wait    string // "" if there is none
	Owner            text   // of one holder; nil if there is none
	Others           int    // holders
}

// newListView shows what was read last, and what the process does now: while Redis does not answer, only that is news.
func newListView(q listQuery, s state[listing], interval time.Duration, process lockkeeper.Stats) listView {
	found := q.selected(s.value.entries)
	v := listView{Query: q, Seen: seenAt(s.at, s.err, interval), Total: len(s.value.entries), Found: len(found), More: s.value.more, One: s.value.oneNode, Process: process}
	if v.Process.Silence > 0 {
		v.Silence = duration(v.Process.Silence)
	}
	for _, e := range found {
		v.Waits += e.Waiters
		if e.Holders > 0 {
			v.Held++
		}
	}
	for i, c := range columns {
		to := q
		to.sort, to.page, to.reverse = i, 1, i == q.sort && !q.reverse
		order := ""
		if i == q.sort {
			order = "ascending"
			if c.number != q.reverse {
				order = "descending"
			}
		}
		v.Columns = append(v.Columns, columnView{c.field, c.label, to.url(), order, c.number, c.wide})
	}
	var first, last int
	v.Pager, first, last = newPager(len(found), namesPerPage, q.page, func(page int) string {
		to := q
		to.page = page
		return to.url()
	})
	for _, e := range found[first:last] {
		v.Rows = append(v.Rows, newRowView(e))
	}
	return v
}

func newRowView(e admin.LockSummary) rowView {
	r := rowView{
		ID: reference(string(e.Kind), e.Name), URL: lockQuery{id: lockID{e.Kind, e.Name}}.url(), Name: shortened(e.Name), Kind: e.Kind,
		Holders: e.Holders, Waiters: e.Waiters,
	}
	if full := visible(e.Name).String(); full != r.Name.String() {
		r.FullName = full
	}
	if e.Holders > 0 {
		r.Expires = expiry(e.ExpiresIn)
		r.Owner, r.Others = ownerText(e.Owner, e.Keeper), e.Holders-1
	}
	if e.Waiters > 0 {
		r.Wait = duration(e.LongestWait)
	}
	return r
}

// list serves the page of all names.
func (h *Handler) list(w http.ResponseWriter, r *http.Request) error {
	q, err := parseListQuery(r.URL.Query())
	if err != nil {
		return err
	}
	all, err := h.watches.list("")
	if err != nil {
		return err
	}
	s := all.current(r.Context(), patience)
	if p := q.pattern(s); p != "" {
		some, err := h.watches.list(p)
		if err != nil {
			return err
		}
		s = some.current(r.Context(), patience)
	}
	v := newListView(q, s, h.opts.Interval, h.watches.source.Stats())
	v.frame = h.frame("", q.events())
	h.render(w, http.StatusOK, "list", v)
	return nil
}

// patternOf returns the pattern of a search: the search itself if it has one of the special characters of Redis's patterns, and else one of
// which it is a part.
func patternOf(search string) string {
	if search == "" || strings.ContainsAny(search, `*?[\`) {
		return search
	}
	return "*" + search + "*"
}
