from .audit.folder import write_audit_report as write_audit_report
from .page import build_report as build_report
