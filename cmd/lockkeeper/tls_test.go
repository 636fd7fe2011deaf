package main

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
)

// authority signs certificates.
type authority struct {
	*testing.T
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	a := &authority{T: t, dir: t.TempDir()}
	a.cert, a.key = a.sign("ca", &x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign})
	return a
}

// file is the path of a certificate, or of its key.
func (a *authority) file(name string) string { return filepath.Join(a.dir, name+".pem") }

// sign writes a certificate and its key.
func (a *authority) sign(name string, c *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey) {
	a.Helper()
	key := must.Get(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(a)
	c.SerialNumber, c.Subject = big.NewInt(time.Now().UnixNano()), pkix.Name{CommonName: name}
	c.NotBefore, c.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = c, key
	}
	der := must.Get(x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, signer))(a)
	private := must.Get(x509.MarshalPKCS8PrivateKey(key))(a)
	for file, block := range map[string]*pem.Block{name: {Type: "CERTIFICATE", Bytes: der}, name + "-key": {Type: "PRIVATE KEY", Bytes: private}} {
		must.OK(a, os.WriteFile(a.file(file), pem.EncodeToMemory(block), 0o600))
	}
	signed := must.Get(x509.ParseCertificate(der))(a)
	return signed, key
}

// tlsServer starts a server whose only port expects TLS with a client certificate, and a password, and returns its address. The test is
// skipped if the server is built without TLS. With LOCKKEEPER_NEED_REDIS that is a failure, unless REDIS_SERVER names the server, as make
// versions does: not all of its servers have TLS, but that of the distribution has.
func tlsServer(t *testing.T, a *authority, password string) string {
	t.Helper()
	port := redistest.FreePort(t)
	addr := "127.0.0.1:" + strconv.Itoa(port)
	cmd := exec.Command(redistest.RequireBinary(t), "--port", "0", "--tls-port", strconv.Itoa(port), "--bind", "127.0.0.1", "--dir", t.TempDir(),
		"--save", "", "--requirepass", password, "--tls-cert-file", a.file("server"), "--tls-key-file", a.file("server-key"), "--tls-ca-cert-file", a.file("ca"))
	out := &bytes.Buffer{}
	cmd.Stdout, cmd.Stderr = out, out
	must.OK(t, redistest.StartProcess(cmd))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-ended
	})
	eventually(t, "the server listens", func() bool {
		select {
		case <-ended:
			if os.Getenv("LOCKKEEPER_NEED_REDIS") != "" && os.Getenv("REDIS_SERVER") == "" {
				t.Fatalf("redis-server does not start with TLS: %s", out)
			}
			t.Skip("this redis-server is built without TLS")
		default:
		}
		c, err := net.Dial("tcp", addr)
		if err == nil {
			_ = c.Close()
		}
		return err == nil
	})
	return addr
}

func TestTLS(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	a.sign("server", &x509.Certificate{IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
	a.sign("client", &x509.Certificate{ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	const password = "pa/ss"
	addr := tlsServer(t, a, password)
	file := filepath.Join(a.dir, "password")
	must.OK(t, os.WriteFile(file, []byte(password+"\n"), 0o600))
	ca, client := []string{"--cacert", a.file("ca")}, []string{"--cert", a.file("client"), "--key", a.file("client-key")}
	with := func(lists ...[]string) (all []string) {
		for _, list := range lists {
			all = append(all, list...)
		}
		return all
	}
	secure, plain := []string{"--redis", "rediss://" + addr}, []string{"--redis", "redis://" + addr}
	run := func(env string, code int, args []string, says ...string) {
		t.Helper()
		c := command(t, args...)
		c.Env = append(c.Env, env)
		c.ends(code, says...)
	}
	const env = "REDIS_PASSWORD=" + password
	try, do := []string{"run", "--try"}, []string{"x", "--", "true"}
	run(env, 0, with(try, secure, ca, client, do))
	run("", 0, with(try, secure, ca, client, []string{"--password-file", file}, do))
	run("", 0, with([]string{"ls", "--password-file", file}, secure, ca, client))
	run("", 69, with([]string{"ls"}, secure, ca, client), "NOAUTH", "--password-file")
	run(env, 69, with([]string{"ls"}, plain), "EOF", "use rediss:// instead of redis://")
	run(env, 69, with(try, plain, do), "use rediss:// instead of redis://")
	run(env, 69, with([]string{"ls"}, secure), "unknown authority", "--cacert")
	run(env, 69, with([]string{"ls"}, secure, ca), "--cert and --key")
	c := command(t, with([]string{"doctor"}, plain)...)
	c.ends(69)
	if out := c.out.String(); !strings.Contains(out, "use rediss:// instead of redis://") {
		t.Error(out)
	}
	_, url := server(t)
	run("", 69, []string{"ls", "--redis", "rediss" + url[len("redis"):]}, "use redis:// instead of rediss://")
}
