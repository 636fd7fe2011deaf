package inspector

import (
	"fmt"
	"time"
)

// seen says how current a page is.
type seen struct {
	Err   text   // why the last look failed; nil if it did not
	Never bool   // nothing was read yet
	Age   string // of what the page shows; "" if it is as new as can be
}

func seenAt(at time.Time, err error, interval time.Duration) seen {
	s := seen{Never: at.IsZero()}
	if err != nil {
		s.Err = message(err)
	}
	if age := time.Since(at); !s.Never && (err != nil || age > 5*interval) {
		s.Age = duration(age)
	}
	return s
}

// pager is the navigation between the parts of a long table.
type pager struct {
	First, Last, Total int    // of the rows that are shown, from 1
	Previous, Next     string // URLs; "" if there is none
}

// Needed reports whether there is more than one part.
func (p pager) Needed() bool { return p.Previous != "" || p.Next != "" }

// Text says which rows are shown.
func (p pager) Text() string {
	return fmt.Sprintf("%s–%s of %s", number(p.First), number(p.Last), number(p.Total))
}

// newPager returns the pager of a page, and the rows that it shows. After the last page comes the last page: the table may
// have become shorter.
func newPager(total, perPage, page int, url func(page int) string) (p pager, first, last int) {
	page = min(page, max(1, (total+perPage-1)/perPage))
	first = (page - 1) * perPage
	last = min(first+perPage, total)
	p = pager{First: first + 1, Last: last, Total: total}
	if page > 1 {
		p.Previous = url(page - 1)
	}
	if last < total {
		p.Next = url(page + 1)
	}
	return p, first, last
}
