package deploy

import (
	"maps"
	"slices"
	"strings"
	"testing"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	"helm.sh/helm/v4/pkg/chart/v2/lint"
	"helm.sh/helm/v4/pkg/chart/v2/lint/support"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	policy "k8s.io/api/policy/v1"
	"sigs.k8s.io/yaml"
)

const chart = directory + "/helm/cdc-relay"

// everything switches on all that the chart can do.
var everything = map[string]any{
	"config": map[string]any{
		"database": map[string]any{"url": "${DATABASE_URL}"},
		"inbox":    map[string]any{"listen": ":8081", "partners": []any{map[string]any{"name": "github", "preset": "github", "secrets": []any{"${ADMIN_TOKEN}"}}}},
		"admin":    map[string]any{"listen": ":9090", "token": "${ADMIN_TOKEN}"},
	},
	"env":            []any{map[string]any{"name": "A", "value": "b"}},
	"secretFiles":    []any{"certificates"},
	"ingress":        map[string]any{"enabled": true, "className": "nginx", "tlsSecret": "hooks-tls"},
	"networkPolicy":  map[string]any{"enabled": true, "adminFrom": []any{map[string]any{"podSelector": map[string]any{}}}, "egress": []any{map[string]any{"ports": []any{map[string]any{"port": 5432}}}}},
	"serviceMonitor": map[string]any{"enabled": true, "labels": map[string]any{"release": "prometheus"}},
	"podLabels":      map[string]any{"team": "payments"}, "podAnnotations": map[string]any{"a": "b"},
	"tolerations": []any{map[string]any{"operator": "Exists"}}, "nodeSelector": map[string]any{"pool": "a"},
}

// render gives the manifests by the names of their templates.
func render(t *testing.T, values map[string]any) map[string]string {
	t.Helper()
	loaded, err := loader.Load(chart)
	if err != nil {
		t.Fatal(err)
	}
	release := common.ReleaseOptions{Name: "shop", Namespace: "payments", Revision: 1, IsInstall: true}
	full, err := util.ToRenderValues(loaded, values, release, common.DefaultCapabilities)
	if err != nil {
		t.Fatal(err)
	}
	rendered, err := engine.Render(loaded, full)
	if err != nil {
		t.Fatal(err)
	}
	manifests := map[string]string{}
	for name, text := range rendered {
		if strings.TrimSpace(text) != "" && strings.HasSuffix(name, ".yaml") {
			manifests[name[strings.LastIndex(name, "/")+1:]] = text
		}
	}
	return manifests
}

// decode fills a type of Kubernetes', and fails on what that doesn't know.
func decode[T any](t *testing.T, manifests map[string]string, name string) T {
	t.Helper()
	var into T
	if err := yaml.UnmarshalStrict([]byte(manifests[name]), &into); err != nil {
		t.Fatalf("%s: %v\n%s", name, err, manifests[name])
	}
	return into
}

// TestChart: Helm's lint has nothing to say, and what is rendered decodes strictly
// into Kubernetes' own types.
func TestChart(t *testing.T) {
	t.Parallel()
	for name, values := range map[string]map[string]any{"defaults": {}, "everything": everything} {
		for _, message := range lint.RunAll(chart, values, "payments").Messages {
			if message.Severity > support.InfoSev {
				t.Errorf("lint with %s: %s", name, message)
			}
		}
	}
	plain := render(t, nil)
	if got, want := slices.Sorted(maps.Keys(plain)), []string{"config.yaml", "deployment.yaml", "poddisruptionbudget.yaml", "service.yaml", "serviceaccount.yaml"}; !slices.Equal(got, want) {
		t.Errorf("by default there are %v, want %v", got, want)
	}
	full := render(t, everything)
	if len(full) != 8 {
		t.Errorf("with everything there are %v", slices.Sorted(maps.Keys(full)))
	}
	for _, manifests := range []map[string]string{plain, full} {
		deployment := decode[apps.Deployment](t, manifests, "deployment.yaml")
		pod := deployment.Spec.Template.Spec
		container := pod.Containers[0]
		if *deployment.Spec.Replicas != 2 || !*pod.SecurityContext.RunAsNonRoot || !*container.SecurityContext.ReadOnlyRootFilesystem ||
			*container.SecurityContext.AllowPrivilegeEscalation || *pod.AutomountServiceAccountToken {
			t.Errorf("the deployment is not as safe as it should be:\n%s", manifests["deployment.yaml"])
		}
		if container.LivenessProbe.HTTPGet.Path != "/healthz" || container.ReadinessProbe.HTTPGet.Path != "/readyz" {
			t.Error("the probes ask for other paths than the relay serves")
		}
		config := decode[core.ConfigMap](t, manifests, "config.yaml")
		accepted(t, config.Data["cdc-relay.yaml"])
		decode[core.Service](t, manifests, "service.yaml")
		decode[core.ServiceAccount](t, manifests, "serviceaccount.yaml")
		decode[policy.PodDisruptionBudget](t, manifests, "poddisruptionbudget.yaml")
	}
	network := decode[networking.NetworkPolicy](t, full, "networkpolicy.yaml")
	if len(network.Spec.Ingress) != 2 || len(network.Spec.Egress) != 2 || len(network.Spec.PolicyTypes) != 2 {
		t.Errorf("network policy %+v", network.Spec)
	}
	decode[networking.Ingress](t, full, "ingress.yaml")
	monitor := decode[monitoring.ServiceMonitor](t, full, "servicemonitor.yaml")
	if monitor.Spec.Endpoints[0].Path != "/metrics" || monitor.Labels["release"] != "prometheus" {
		t.Errorf("service monitor %+v", monitor)
	}
}

// TestChartMistakes are refused before anything is installed.
func TestChartMistakes(t *testing.T) {
	t.Parallel()
	loaded, err := loader.Load(chart)
	if err != nil {
		t.Fatal(err)
	}
	for name, values := range map[string]map[string]any{
		"no replica": {"replicas": 0}, "a misspelt key": {"replicaCount": 2}, "a misspelt key within": {"ingress": map[string]any{"hosts": "x"}},
		"an ingress without an inbox": {"ingress": map[string]any{"enabled": true}},
	} {
		full, err := util.ToRenderValues(loaded, values, common.ReleaseOptions{Name: "shop"}, common.DefaultCapabilities)
		if err == nil {
			_, err = engine.Render(loaded, full)
		}
		if err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}
