// Command lockkeeper runs commands under distributed locks on Redis, checks Redis deployments, and demonstrates the locks.
package main

import (
	"os"

	"github.com/lockkeeper/lockkeeper/internal/cli"
)

func main() { os.Exit(cli.Main(os.Args[1:])) }
