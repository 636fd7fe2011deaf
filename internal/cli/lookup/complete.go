package lookup

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/admin"
	"github.com/lockkeeper/lockkeeper/internal/cli/output"
	"github.com/lockkeeper/lockkeeper/internal/cli/redisurl"
	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/spf13/cobra"
)

// A shell must not wait long for completions, nor get too many.
const (
	completionTimeout = 500 * time.Millisecond
	completionNames   = 200
)

// CompleteName completes the name of a lock that is held or waited for. It offers what it finds in half a second, and nothing if
// the server does not answer.
func CompleteName(c *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	const directive = cobra.ShellCompDirectiveNoFileComp
	if len(args) > 0 {
		return nil, directive
	}
	f := c.Flags()
	var raw string
	if urls, _ := f.GetStringArray("redis"); len(urls) > 0 {
		raw = urls[0]
	}
	prefix, _ := f.GetString("prefix")
	t, err := redisurl.Given(c).Parse(raw)
	if err != nil {
		return nil, directive
	}
	rdb := t.WithoutRetries().Client()
	defer func() { _ = rdb.Close() }()
	k, err := lockkeeper.New(rdb, &lockkeeper.Options{Prefix: prefix, NoPrefix: prefix == "", NoOwner: true, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, directive
	}
	opts := &admin.ListOptions{Match: protocol.QuoteGlob(typed) + "*"}
	if kind, _ := f.GetString("kind"); kind != "" {
		opts.Kinds = []lockkeeper.Kind{lockkeeper.Kind(kind)}
	}
	ctx, cancel := context.WithTimeout(c.Context(), completionTimeout)
	defer cancel()
	kinds := map[string][]string{} // of each name
	for e, err := range admin.List(ctx, k, opts) {
		if err != nil {
			break
		}
		if strings.TrimSpace(output.Text(e.Name)) != e.Name {
			continue // what is quoted cannot be completed
		}
		if kinds[e.Name] == nil && len(kinds) == completionNames {
			break
		}
		kinds[e.Name] = append(kinds[e.Name], string(e.Kind))
	}
	var all []cobra.Completion
	for name, of := range kinds {
		slices.Sort(of)
		all = append(all, cobra.CompletionWithDesc(name, strings.Join(of, ", ")))
	}
	slices.Sort(all)
	return all, directive
}
