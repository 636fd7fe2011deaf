// Package version implements the command version.
package version

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"

	"github.com/lockkeeper/lockkeeper/internal/cli/exit"
	"github.com/lockkeeper/lockkeeper/internal/cli/output"
	"github.com/lockkeeper/lockkeeper/lua"
	"github.com/spf13/cobra"
)

// Build says what this program was built from.
type Build struct {
	Version  string `json:"version"`  // of the module, or "devel"
	Commit   string `json:"commit"`   // of a build from a checkout; else ""
	Modified bool   `json:"modified"` // the checkout had changes that were not committed
	Go       string `json:"go"`
	Platform string `json:"platform"`
	Protocol string `json:"protocol"` // a digest of all scripts
}

// Current returns the build of this program.
func Current() Build {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		info = &debug.BuildInfo{GoVersion: runtime.Version()}
	}
	return buildOf(info)
}

func buildOf(info *debug.BuildInfo) Build {
	b := Build{Version: info.Main.Version, Go: info.GoVersion, Platform: runtime.GOOS + "/" + runtime.GOARCH, Protocol: protocol()}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			b.Commit = s.Value
		case "vcs.modified":
			b.Modified = s.Value == "true"
		}
	}
	if b.Version == "" || b.Version == "(devel)" {
		b.Version = "devel"
	}
	return b
}

// protocol returns a digest of all scripts. Builds with the same digest send the same scripts.
func protocol() string {
	h := sha256.New()
	for _, set := range lua.All {
		for _, s := range set.Scripts() {
			fmt.Fprintln(h, s.SHA)
		}
	}
	return hex.EncodeToString(h.Sum(nil))[:12]
}

// String is the output of --version: the version of the module or, in a build from a checkout, the commit.
func (b Build) String() string {
	v := b.Version
	if v == "devel" && b.Commit != "" {
		v += " " + b.Commit
	}
	if b.Modified {
		v += ", modified"
	}
	return fmt.Sprintf("%s, %s, %s", v, b.Go, b.Platform)
}

// Command returns the command version.
func Command() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "version [flags]",
		Short: "Print the version of this program",
		Long: `Print the version of this program, the commit and the version of Go that it was built
from, and a digest of the scripts that it sends to Redis. Builds with the same digest
send the same scripts. Builds with different ones can share a server unless the changelog
says otherwise.

The fields of --json are version, commit, modified, go, platform and protocol (the
digest).`,
		Example: "  lockkeeper version\n  lockkeeper version --json",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return exit.Usagef("version takes no arguments, got %q", args)
			}
			return nil
		},
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(*cobra.Command, []string) error {
			b := Current()
			if asJSON {
				return output.JSON(os.Stdout, b)
			}
			commit := b.Commit
			if commit == "" {
				commit = "unknown"
			}
			if b.Modified {
				commit += ", modified"
			}
			_, err := fmt.Printf("lockkeeper %s\ncommit     %s\nGo         %s, %s\nprotocol   %s\n", b.Version, commit, b.Go, b.Platform, b.Protocol)
			return err
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "write one JSON object")
	return c
}
