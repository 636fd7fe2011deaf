package lookup

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/admin"
	"github.com/lockkeeper/lockkeeper/internal/cli/connect"
	"github.com/lockkeeper/lockkeeper/internal/cli/output"
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
	conn, err := connect.OpenToComplete(c)
	if err != nil {
		return nil, directive
	}
	// It is not closed, because that may take a second more if the server hangs, and the process ends now.
	opts := &admin.ListOptions{Match: protocol.QuoteGlob(typed) + "*"}
	if kind, _ := c.Flags().GetString("kind"); kind != "" {
		opts.Kinds = []lockkeeper.Kind{lockkeeper.Kind(kind)}
	}
	ctx, cancel := context.WithTimeout(c.Context(), completionTimeout)
	defer cancel()
	kinds := map[string][]string{} // of each name
	for e, err := range admin.List(ctx, conn.Keeper, opts) {
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
