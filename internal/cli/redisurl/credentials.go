package redisurl

import (
	"crypto/tls"
	"crypto/x509"
	"os"
	"strings"

	"github.com/lockkeeper/lockkeeper/internal/cli/exit"
	"github.com/spf13/cobra"
)

// passwordVariable is the environment variable of the password.
const passwordVariable = "REDIS_PASSWORD"

// Credentials is what a client needs besides the URL. The fields are names of files, or empty.
type Credentials struct {
	CACert, Cert, Key string
	PasswordFile      string
}

// Register adds the flags to a command.
func (c *Credentials) Register(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&c.CACert, "cacert", "", "`file` with the certificates of the authorities that sign the server's, in PEM; needs rediss://\n(default those of the system)")
	f.StringVar(&c.Cert, "cert", "", "`file` with the client's certificate, in PEM; needs --key")
	f.StringVar(&c.Key, "key", "", "`file` with the private key of --cert, in PEM")
	f.StringVar(&c.PasswordFile, "password-file", "", "`file` with the password, instead of one in the URL (default $"+passwordVariable+")")
}

// Given returns the credentials of the flags of a command.
func Given(cmd *cobra.Command) Credentials {
	flag := func(name string) string {
		v, _ := cmd.Flags().GetString(name)
		return v
	}
	return Credentials{flag("cacert"), flag("cert"), flag("key"), flag("password-file")}
}

// apply sets the credentials of a target. The password is that of servers: one of Sentinels is the URL's sentinel_password.
func (t *Target) apply(c Credentials) error {
	if err := c.applyTLS(t.tls()); err != nil {
		return err
	}
	password := t.password()
	switch {
	case c.PasswordFile != "" && *password != "":
		return exit.Usagef("--password-file cannot be used with a password in the URL")
	case c.PasswordFile != "":
		text, err := os.ReadFile(c.PasswordFile)
		if err != nil {
			return exit.Usagef("--password-file: %w", err)
		}
		if *password = strings.TrimRight(string(text), "\r\n"); *password == "" {
			return exit.Usagef("--password-file %s: the file is empty", c.PasswordFile)
		}
	case *password == "":
		*password = os.Getenv(passwordVariable)
	}
	return nil
}

func (c Credentials) applyTLS(config *tls.Config) error {
	switch {
	case c.CACert == "" && c.Cert == "" && c.Key == "":
		return nil
	case (c.Cert == "") != (c.Key == ""):
		return exit.Usagef("--cert and --key are needed together")
	case config == nil:
		return exit.Usagef("--cacert, --cert and --key are for TLS: the URL must begin with rediss://")
	}
	if c.CACert != "" {
		text, err := os.ReadFile(c.CACert)
		if err != nil {
			return exit.Usagef("--cacert: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(text) {
			return exit.Usagef("--cacert %s has no certificate in PEM", c.CACert)
		}
	}
	if c.Cert != "" {
		pair, err := tls.LoadX509KeyPair(c.Cert, c.Key)
		if err != nil {
			return exit.Usagef("--cert and --key: %w", err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return nil
}

// TLS reports whether the target is reached by TLS.
func (t *Target) TLS() bool { return t.tls() != nil }

func (t *Target) tls() *tls.Config {
	switch {
	case t.Cluster != nil:
		return t.Cluster.TLSConfig
	case t.Sentinel != nil:
		return t.Sentinel.TLSConfig
	}
	return t.Server.TLSConfig
}

func (t *Target) password() *string {
	switch {
	case t.Cluster != nil:
		return &t.Cluster.Password
	case t.Sentinel != nil:
		return &t.Sentinel.Password
	}
	return &t.Server.Password
}
