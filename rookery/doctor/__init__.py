"""What is wrong with a run, in words and figures: ``rookery doctor``."""

from rookery.doctor.diagnosis import Diagnosis as Diagnosis
from rookery.doctor.diagnosis import diagnose as diagnose
from rookery.doctor.verdicts import Verdict as Verdict
from rookery.doctor.vitals import Vitals as Vitals
