package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
)

// UnmarshalYAML takes an alert's URL alone, or its mapping.
func (a *AlertConfig) UnmarshalYAML(unmarshal func(any) error) error {
	var url string
	if err := unmarshal(&url); err == nil {
		a.URL = url
		return nil
	}
	type plain AlertConfig
	return unmarshal((*plain)(a))
}

// load reads the certificates; nil stands for the system's.
func (t TLSConfig) load() (*tls.Config, error) {
	if t == (TLSConfig{}) {
		return nil, nil
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if t.CAFile != "" {
		pem, err := os.ReadFile(t.CAFile)
		if err != nil {
			return nil, fmt.Errorf("ca_file: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, errors.New("ca_file holds no PEM certificate")
		}
	}
	if t.CertFile != "" || t.KeyFile != "" {
		pair, err := tls.LoadX509KeyPair(t.CertFile, t.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("cert_file and key_file: %w", err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}
