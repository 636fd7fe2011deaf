package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
)

// certificates writes the certificates of an authority, ca, and of a server and a client, which it signs, to files NAME.pem, and
// their keys to NAME-key.pem.
func certificates(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	localhost := []net.IP{net.IPv4(127, 0, 0, 1)}
	var ca *x509.Certificate
	var signer *ecdsa.PrivateKey
	for serial, c := range []*x509.Certificate{
		{Subject: pkix.Name{CommonName: "ca"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign},
		{Subject: pkix.Name{CommonName: "server"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, IPAddresses: localhost},
		{Subject: pkix.Name{CommonName: "client"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}},
	} {
		key := must.Get(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
		c.SerialNumber = big.NewInt(int64(serial + 1))
		c.NotBefore, c.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
		if ca == nil {
			ca, signer = c, key
		}
		der := must.Get(x509.CreateCertificate(rand.Reader, c, ca, &key.PublicKey, signer))(t)
		private := must.Get(x509.MarshalPKCS8PrivateKey(key))(t)
		path := filepath.Join(dir, c.Subject.CommonName)
		must.OK(t, os.WriteFile(path+".pem", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
		must.OK(t, os.WriteFile(path+"-key.pem", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}), 0o600))
	}
	return dir
}

// tlsServer starts a server that has a port for TLS with a client certificate, and a password, and returns its address. The test is
// skipped if the redis-server on PATH does not know TLS, which is a failure with LOCKKEEPER_NEED_REDIS, and if the server that
// REDIS_SERVER names, as make versions does, cannot listen with it: not all of those have TLS, and one of them exits when it is turned on.
func tlsServer(t *testing.T, certificates, password string) string {
	t.Helper()
	s := redistest.Start(t)
	port := redistest.FreePort(t)
	file := func(name string) string { return filepath.Join(certificates, name) }
	err := s.Client().Do(ctx, "config", "set", "tls-cert-file", file("server.pem"), "tls-key-file", file("server-key.pem"),
		"tls-ca-cert-file", file("ca.pem"), "tls-port", port, "requirepass", password).Err()
	if err != nil {
		unknown := strings.Contains(err.Error(), "Unknown option") && os.Getenv("LOCKKEEPER_NEED_REDIS") == ""
		must.That(t, unknown || os.Getenv("REDIS_SERVER") != "", "redis-server does not listen with TLS: %v", err)
		t.Skipf("this redis-server does not listen with TLS: %v", err)
	}
	return "127.0.0.1:" + strconv.Itoa(port)
}

func TestTLS(t *testing.T) {
	t.Parallel()
	dir := certificates(t)
	const password = "pa/ss"
	addr := tlsServer(t, dir, password)
	must.OK(t, os.WriteFile(filepath.Join(dir, "password"), []byte(password+"\n"), 0o600))
	_, plain := server(t)
	silent := redistest.Start(t).Addr + "?dial_timeout=300ms" // Redis awaits the rest of what TLS begins with
	for _, c := range []struct {
		code     int
		password string // in the environment
		args     string
		says     string
	}{
		{0, password, "run --try --redis rediss://ADDR --cacert ca.pem --cert client.pem --key client-key.pem x -- true", ""},
		{0, "", "ls --redis rediss://ADDR --cacert ca.pem --cert client.pem --key client-key.pem --password-file password", ""},
		{69, "", "ls --redis rediss://ADDR --cacert ca.pem --cert client.pem --key client-key.pem", "by --password-file"},
		{69, "", "run --try --redis rediss://ADDR --cacert ca.pem --cert client.pem --key client-key.pem x -- true", "wants a password"},
		{69, password, "ls --redis redis://ADDR", "use rediss:// instead of redis://"},
		{69, password, "run --try --redis redis://ADDR x -- true", "use rediss:// instead of redis://"},
		{69, password, "ls --redis rediss://ADDR", "unknown authority: give the certificate of its authority by --cacert"},
		{69, password, "ls --redis rediss://ADDR --cacert ca.pem", "--cert and --key"},
		{69, "", "ls --redis " + strings.Replace(plain, "redis:", "rediss:", 1), "use redis:// instead of rediss://"},
		{69, "", "ls --redis rediss://SILENT", "has not answered with TLS; if this port does not expect it, use redis:// instead"},
		{69, "", "run --wait 1s --redis rediss://SILENT x -- true", "has not answered with TLS"},
		{69, "", "show --timeout 1s --redis rediss://SILENT x", "has not answered with TLS"},
	} {
		run := command(t, strings.Fields(strings.NewReplacer("ADDR", addr, "SILENT", silent).Replace(c.args))...)
		run.Dir = dir
		run.Env = append(run.Env, "REDIS_PASSWORD="+c.password)
		run.ends(c.code, c.says)
	}
	command(t, "doctor", "--redis", "rediss://"+silent).ends(69).prints("use redis:// instead of rediss://")
	command(t, "doctor", "--redis", "redis://"+addr).ends(69).prints("use rediss:// instead of redis://")
}
